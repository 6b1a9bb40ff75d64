"""What the policy itself takes of a step: planning, the rule in the draft loop, and learning from the record.

    python -m benchmarks.policy_time [--sequences 16] [--routes 4] [--steps 400] [--acceptance 0.9]

The engine's part (making views and records) is not in it. Simulated traffic, so that all paths are taken.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from paceline.policy.controller import SpeculationPolicy
from paceline.policy.costs import CostCurve
from paceline.policy.interface import DraftPlan, StepView
from paceline.policy.routes import RouteSettings, RouteTable
from paceline.policy.simulation.result import SimulatedMachine
from paceline.policy.simulation.simulator import Simulator
from paceline.policy.simulation.traffic import AcceptanceProcess, SimulatedRoute
from paceline.policy.step_costs import CalibratedCosts
from paceline.step_records import StepRecord

TARGET = CostCurve.of({1: 0.060, 4: 0.061, 16: 0.080, 64: 0.200})
DRAFT = CostCurve.of({1: 0.008, 16: 0.010, 128: 0.080})


class Timed(SpeculationPolicy):
    """A policy that adds up the time spent in it, step by step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.spent: dict[str, float] = {}
        self.steps: list[dict[str, float]] = []

    def _time(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - begin

    def plan(self, view: StepView) -> DraftPlan:
        self.spent = {}
        plan: DraftPlan = self._time("plan", super().plan, view)
        return plan if plan.rule is None else DraftPlan(plan.choices, _TimedRule(self, plan.rule))

    def on_step(self, record: StepRecord) -> None:
        self._time("learn", super().on_step, record)
        self.steps.append(self.spent)


class _TimedRule:
    def __init__(self, policy: Timed, rule: Any) -> None:
        self._policy, self._rule = policy, rule

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._rule, name)
        return lambda *arguments: self._policy._time("rule", function, *arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--routes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--acceptance", type=float, default=0.9, help="of the first route; each has 0.1 less")
    given = parser.parse_args()
    routes = [
        SimulatedRoute(
            f"route-{i}",
            AcceptanceProcess(max(0.01, given.acceptance - 0.1 * i)),
            suffix=AcceptanceProcess(given.acceptance, coverage=0.3),
            concurrency=given.sequences // given.routes,
            prompt_tokens=16,
            output_tokens=200,
        )
        for i in range(given.routes)
    ]
    policy = Timed(RouteTable({}, any_label=RouteSettings()), CalibratedCosts(TARGET, {"model": DRAFT}))
    simulator = Simulator(SimulatedMachine(TARGET, DRAFT, noise=0.03), routes, policy)
    simulator.run(steps=given.steps)
    steps = [
        spent
        for spent, step in zip(policy.steps, simulator.result.steps, strict=True)
        if step.num_decoding == given.routes * (given.sequences // given.routes)
    ][20:]
    print(f"{len(steps)} steps of {given.sequences} sequences on {given.routes} routes")
    print("milliseconds, median, mean and 95th percentile")
    for name in ("plan", "rule", "learn", "all"):
        values = sorted(1e3 * (sum(s.values()) if name == "all" else s.get(name, 0.0)) for s in steps)
        figures = (statistics.median(values), statistics.fmean(values), values[int(0.95 * len(values))])
        print(f"{name:>6}", *(f"{figure:.3f}" for figure in figures), sep="  ")


if __name__ == "__main__":
    main()
