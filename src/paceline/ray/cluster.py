"""The Ray cluster that replicas run on: one of our own on this machine, or one that is there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import ray

from paceline.config.ray_variables import set_ray_defaults
from paceline.errors import ServingError

OBJECT_STORE_BYTES = 100_000_000
"""Of a cluster of our own: only pieces of answers pass through it."""
HEAD = "node:__internal_head__"
"""A resource that Ray gives the head node alone."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What there is to know of a cluster."""

    node_cpus: Sequence[float]
    head_ip: str
    is_ours: bool
    """Whether it was started here, and ends here."""


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Cluster]:
    """Connect to a cluster while the block runs.

    Args:
        address: of a cluster, or "auto"; none starts one on this machine, without a dashboard, which ends
            with the block.

    Raises:
        ServingError: there is none at the address.
    """
    try:
        if address is None:
            set_ray_defaults()
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                logging_level=logging.WARNING,
            )
        else:
            ray.init(address=address, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ServingError(
            given=f"no Ray cluster at {address} ({str(error).splitlines()[0]})",
            expected="one that runs",
            remedy="Start one with ray start --head, set RAY_AUTH_MODE=token where it wants a token, "
            "or leave --address out",
        ) from None
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        heads = [node for node in nodes if HEAD in node["Resources"]]
        yield Cluster(
            tuple(node["Resources"].get("CPU", 0.0) for node in nodes),
            (heads or nodes)[0]["NodeManagerAddress"],
            address is None,
        )
    finally:
        ray.shutdown()
