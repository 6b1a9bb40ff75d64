"""The policy's own simulator over planned traffic: the code that serves, beside plain decoding.

Arrivals are the same in both runs, and so is the luck of each draft, which is drawn from its sequence's seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.planner.break_even import implied_acceptance, tokens_per_step
from paceline.planner.capacity import StepModel, Workload
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.interface import DraftPlan, DraftPolicy, FixedPolicy, StepView
from paceline.policy.routes import RouteSettings, RouteTable
from paceline.policy.simulation.result import SimulatedMachine, SimulationResult
from paceline.policy.simulation.simulator import Simulator
from paceline.policy.simulation.traffic import AcceptanceProcess, SimulatedRoute
from paceline.policy.step_costs import CalibratedCosts
from paceline.records import GenerationResult, SpeculationParams
from paceline.step_records import StepRecord

PREFILL_ROWS = 2048
"""Prompt rows of a step that an accelerator's engine takes, beside decoding sequences too."""
WARM_UP = 0.2
"""Share of the answers, the first to end, that are left out: the machine was empty then, the policy new."""


@dataclass(frozen=True, slots=True)
class ServedRoute:
    """How one route fared."""

    name: str
    num_answers: int
    token_s: float | None
    """Mean time between output tokens; None where none came."""
    ttft_s: float | None
    """Mean time to the first token, waiting included."""
    draft_length: float
    """Mean of verified drafts of its sequences, over all steps that they decoded in."""


@dataclass(frozen=True, slots=True)
class Served:
    """How all routes fared in one run."""

    seconds: float
    tokens_per_s: float
    concurrency: float
    """Mean of sequences that decoded, by time."""
    num_waiting: int
    """Requests that had not begun at the end: a machine that keeps up has few."""
    routes: tuple[ServedRoute, ...]


def simulate(
    model: StepModel, works: Sequence[Workload], *, speculates: bool, max_num_seqs: int, num_answers: int,
    seed: int = 0,
) -> Served:  # fmt: skip
    """Simulate arrivals of all routes until so many have been answered.

    Args:
        model: true costs, which the policy starts from as from its calibration.
        works: routes with arrivals; acceptance by position becomes the independent one of as many tokens.
        speculates: with the policy on `auto`, or without drafts.
        max_num_seqs: sequences at once; the rest waits.
        num_answers: of all routes together.
        seed: of arrivals, lengths and luck.
    """
    recorder = _Recorder(_policy(model, works) if speculates else FixedPolicy())
    machine = SimulatedMachine(
        model.target, model.draft, model.overhead_s, max_num_seqs=max_num_seqs, prefill_rows=PREFILL_ROWS,
        mixed_rows=PREFILL_ROWS,
    )  # fmt: skip
    simulator = Simulator(machine, [_route(work, speculates) for work in works], recorder, seed)
    result = simulator.run(steps=1)
    while result.num_finished < num_answers:
        result = simulator.run(steps=50)
    return _served(result, recorder, works)


def _policy(model: StepModel, works: Sequence[Workload]) -> SpeculationPolicy:
    routes = {
        work.name: RouteSettings(drafters=("model",), max_draft_length=_most_drafts(work)) for work in works
    }
    return SpeculationPolicy(RouteTable(routes), CalibratedCosts(model.target, {"model": model.draft}))


def _most_drafts(work: Workload) -> int | None:
    return None if isinstance(work.acceptance, int | float) else len(work.acceptance)


def _route(work: Workload, speculates: bool) -> SimulatedRoute:
    asked = SpeculationParams(enabled="auto" if speculates else False)
    return SimulatedRoute(
        work.name, AcceptanceProcess(independent(work), spread=0.0), arrivals_per_s=work.arrivals_per_s,
        prompt_tokens=work.prompt_tokens, output_tokens=work.output_tokens, is_geometric=True,
        speculation=asked,
    )  # fmt: skip


def independent(work: Workload) -> float:
    """Return a route's acceptance as one chance for every position, of as many tokens per step."""
    if isinstance(work.acceptance, int | float):
        return float(work.acceptance)
    k = len(work.acceptance)
    return implied_acceptance(tokens_per_step(work.acceptance, k), k)


def _served(result: SimulationResult, recorder: _Recorder, works: Sequence[Workload]) -> Served:
    answers = recorder.answers[int(WARM_UP * len(recorder.answers)) :]
    seconds = sum(step.seconds for step in result.steps)
    decoding = sum(step.num_decoding * step.seconds for step in result.steps)
    return Served(
        seconds=result.seconds,
        tokens_per_s=result.goodput,
        concurrency=decoding / seconds if seconds else 0.0,
        num_waiting=recorder.num_waiting,
        routes=tuple(_fared(work.name, answers, result) for work in works),
    )


def _fared(name: str, answers: Sequence[GenerationResult], result: SimulationResult) -> ServedRoute:
    own = [one for one in answers if one.route == name]
    num_tokens = sum(one.timing.num_decoded for one in own)
    waits = [one.timing.ttft_s for one in own if one.timing.ttft_s is not None]
    return ServedRoute(
        name,
        len(own),
        sum(one.timing.decode_s for one in own) / num_tokens if num_tokens else None,
        float(np.mean(waits)) if waits else None,
        result.mean_draft_length(name),
    )


@dataclass(slots=True)
class _Recorder:
    """A policy that keeps the answers; all it does is the inner one's."""

    inner: DraftPolicy
    answers: list[GenerationResult] = field(default_factory=list)
    num_waiting: int = 0

    def check(self, route: str | None, speculation: SpeculationParams) -> None:
        self.inner.check(route, speculation)

    def plan(self, view: StepView) -> DraftPlan:
        self.num_waiting = view.num_waiting
        return self.inner.plan(view)

    def on_step(self, record: StepRecord) -> None:
        self.inner.on_step(record)

    def on_finish(self, result: GenerationResult) -> None:
        self.answers.append(result)
        self.inner.on_finish(result)

    def wants_scored(self, route: str | None) -> str | None:
        return self.inner.wants_scored(route)

    def on_scored(self, route: str | None, model: str, scored: Sequence[tuple[float, bool]]) -> None:
        self.inner.on_scored(route, model, scored)
