"""Routes and their policy inside vLLM: a scheduler for its engine core, a bridge to the process that serves.

`paceline.vllm.RouteScheduler` is what `--scheduler-cls` takes. Nothing here imports vLLM before it is asked
for that class, so that the bridge can be used, and tested, without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.vllm.scheduler import RouteScheduler, SyncRouteScheduler
    from paceline.vllm.worker import RouteWorker

__all__ = ["RouteScheduler", "RouteWorker", "SyncRouteScheduler"]


def __getattr__(name: str) -> object:
    """Load what needs vLLM only when somebody asks for it."""
    if name in ("RouteScheduler", "SyncRouteScheduler"):
        from paceline.vllm.scheduler import RouteScheduler, SyncRouteScheduler

        return RouteScheduler if name == "RouteScheduler" else SyncRouteScheduler
    if name == "RouteWorker":
        from paceline.vllm.worker import RouteWorker

        return RouteWorker
    raise AttributeError(f"module 'paceline.vllm' has no attribute {name!r}")
