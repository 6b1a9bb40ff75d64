"""Machines, traffic and policies for tests of decisions; everything is seeded."""

from __future__ import annotations

from typing import Any

from paceline.policy.controller import SpeculationPolicy
from paceline.policy.costs import CostCurve
from paceline.policy.interface import FixedPolicy
from paceline.policy.routes import RouteSettings, RouteTable
from paceline.policy.simulation.result import SimulatedMachine, SimulationResult
from paceline.policy.simulation.simulator import Simulator
from paceline.policy.simulation.traffic import AcceptanceProcess, SimulatedRoute
from paceline.policy.states import Decision, EventKind
from paceline.policy.step_costs import CalibratedCosts
from paceline.records import SpeculationParams

TARGET = CostCurve.of({1: 0.060, 2: 0.061, 4: 0.063, 8: 0.080, 16: 0.130, 32: 0.230, 64: 0.430})
"""Waits for memory up to some eight rows, then for arithmetic."""
DRAFT = CostCurve.of({1: 0.008, 8: 0.009, 16: 0.012, 64: 0.040, 128: 0.080})
COSTS = CalibratedCosts(TARGET, {"model": DRAFT})


def auto(
    routes: dict[str, RouteSettings] | None = None, costs: CalibratedCosts | None = COSTS, **settings: Any
) -> SpeculationPolicy:
    """A policy for these routes, or for any label with these settings."""
    any_label = None if routes else RouteSettings(**settings)
    return SpeculationPolicy(RouteTable(routes or {}, any_label=any_label), costs)


def machine(**more: Any) -> SimulatedMachine:
    return SimulatedMachine(**{"target": TARGET, "draft": DRAFT, "noise": 0.03, **more})


def fixed(length: int, drafter: str = "model") -> SpeculationParams:
    return SpeculationParams(enabled=length > 0, drafter=drafter, draft_length=length)


def run_fixed(length: int, hardware: SimulatedMachine, *, steps: int = 400, **route: Any) -> SimulationResult:
    """The same traffic with a fixed draft length."""
    traffic = SimulatedRoute("r", speculation=fixed(length), **route)
    return Simulator(hardware, [traffic], FixedPolicy()).run(steps=steps)


def run_auto(
    hardware: SimulatedMachine,
    *,
    policy: SpeculationPolicy | None = None,
    steps: int = 400,
    seed: int = 0,
    **route: Any,
) -> tuple[SimulationResult, SpeculationPolicy]:
    policy = policy or auto()
    return Simulator(hardware, [SimulatedRoute("r", **route)], policy, seed).run(steps=steps), policy


def changes(policy: SpeculationPolicy, route: str | None = None) -> list[Decision]:
    """The changes of state, of one route or of all."""
    return [d for d in policy.log.recent if d.kind is EventKind.STATE and route in (None, d.route)]


GOOD = AcceptanceProcess(0.85)
