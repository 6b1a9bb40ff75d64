"""Ray's way to the hub: a detached actor on the node that has the configuration."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paceline.config.server import ServeSettings
from paceline.errors import ServingError
from paceline.ray.hub import Hub

NAMESPACE = "paceline"
MOST_RETRIES = 5
"""Of one call, where the hub dies in the middle of it; each of its calls may be made twice."""


def start_hub(name: str, settings: ServeSettings, num_replicas: int) -> Any:
    """Start the hub on this node, in the place of one that an earlier start left; returns its actor.

    Raises:
        PacelineError: the database of changes, or what is in it, cannot be used.
    """
    stop_hub(name)
    actor = ray.remote(Hub).options(  # type: ignore[attr-defined, unused-ignore]
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=MOST_RETRIES,
        max_concurrency=10_000,
        scheduling_strategy=NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        ),
    )
    hub = actor.remote(settings, num_replicas)
    try:
        ray.get(hub.start.remote())
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        cause = getattr(error, "cause", None)
        raise ServingError(
            given=f"a hub that did not start: {cause or error}",
            expected="an actor on this node",
            remedy="Look into Ray's logs",
        ) from None
    return hub


def stop_hub(name: str) -> None:
    """End the hub of that name; without one, do nothing."""
    try:
        ray.kill(ray.get_actor(name, NAMESPACE), no_restart=True)
    except ValueError:
        return


def end_replicas(name: str, within_s: float) -> tuple[int, int]:
    """Let every replica finish what it has and take no more; returns how many answers came to their own end,
    and how many did not.

    Args:
        name: the hub's.
        within_s: answers that take longer end with an error that says so.
    """
    hub = ray.get_actor(name, NAMESPACE)
    ends = ray.get(hub.end.remote(within_s)).values()
    return sum(finished for finished, _ in ends), sum(ended for _, ended in ends)


class RayHub:
    """Calls the hub from anywhere in the cluster.

    Args:
        name: the actor's.
    """

    def __init__(self, name: str) -> None:
        self._actor = ray.get_actor(name, NAMESPACE)

    async def __call__(self, method: str, *arguments: Any) -> Any:
        """Call one of its methods; see `HubCall`."""
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except RayTaskError as error:
            # Ray's own is of both classes, and its text is a traceback.
            raise error.cause from None
        except RayActorError:
            raise ServingError(
                given="routes whose keeper does not answer",
                expected="an actor that runs, or is started again",
                remedy="Try again in some seconds",
            ) from None
