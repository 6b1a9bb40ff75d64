"""What can be said of an engine between two steps, as one frozen record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.cache import KVStats
from paceline.engine.engine import Engine
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.reports import RouteReport


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An engine, now."""

    num_running: int
    num_waiting: int
    num_preemptions: int
    num_steps: int
    kv: KVStats
    reports: Mapping[str, RouteReport]
    """Of routes, by name; empty where there is no policy."""


def take_snapshot(engine: Engine) -> Snapshot:
    """Look at an engine; on its own thread."""
    policy = engine.policy
    return Snapshot(
        num_running=engine.num_running,
        num_waiting=engine.num_waiting,
        num_preemptions=engine.num_preemptions,
        num_steps=engine.num_steps,
        kv=engine.kv_stats(),
        reports=policy.reports() if isinstance(policy, SpeculationPolicy) else {},
    )
