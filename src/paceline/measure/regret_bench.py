"""Turns of `paceline bench regret` on a real engine.

Nothing that one setting did is of use to the next, whose turn has the same requests: each turn begins without
any KV of prompts; each setting is a tenant of its own, so that look-ups find its own earlier slices and
nothing else; and the policy hears of its own turns alone, except what steps cost, which all have in common.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from paceline.engine.engine import Engine
from paceline.measure.forecast import Forecast, LoopRequest, forecast
from paceline.measure.load import LoadLoop, LoadRequest
from paceline.measure.load_cell import CellCounts
from paceline.measure.load_mode import Mode
from paceline.measure.regret import Run, Slice
from paceline.measure.run_file import RunFile
from paceline.measure.turns import OFF, in_slices, in_turns, slice_size
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.step_costs import StepCosts
from paceline.records import GenerationResult
from paceline.step_records import StepRecord

Answers = dict[str, GenerationResult]
"""By request id, in the order of requests."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What is answered in each setting before the first slice of a repeat of a cell."""

    each: int
    """Requests a client."""
    most: int
    """Requests."""

    def count(self, concurrency: int) -> int:
        """Return the requests at a concurrency."""
        return min(self.each * concurrency, self.most)


@dataclass(frozen=True, slots=True)
class Turn:
    """One setting's turn of a slice."""

    slice: Slice
    answers: Answers


class CostsOnly:
    """An observer that lets step costs learn, and nothing else."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs

    def on_step(self, record: StepRecord) -> None:
        """Learn what a step cost."""
        self._costs.observe(record)

    def on_finish(self, result: GenerationResult) -> None:
        """Take no note of it."""


class ServedSteps:
    """An observer that keeps what steps computed and what the target took for it: enough to say, from step
    costs, what the same requests would have taken without drafts."""

    def __init__(self) -> None:
        self._passes: dict[bool, list[tuple[int, int, int]]] = {}
        self._seconds: dict[bool, float] = {}
        self._num_computed: dict[str, int] = {}
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self._passes = {True: [], False: []}
        self._seconds = {True: 0.0, False: 0.0}
        self._num_computed = {}

    def on_step(self, record: StepRecord) -> None:
        """Keep a step."""
        prompts = [part for part in record.sequences if not part.is_decoding]
        context = sum(part.num_context_tokens for part in record.sequences)
        self._passes[bool(prompts)].append((record.num_rows, len(record.sequences), context))
        self._seconds[bool(prompts)] += record.verify_s
        for part in prompts:
            computed = self._num_computed.get(part.request_id, 0)
            self._num_computed[part.request_id] = computed + part.num_tokens

    def on_finish(self, result: GenerationResult) -> None:
        """Take no note of it."""

    def plain_run(self, costs: StepCosts, answers: Answers, concurrency: int) -> Forecast:
        """Return the run of the same requests without drafts, on paper; what prompts share is as it was."""
        requests = [
            LoopRequest(
                one.usage.prompt_tokens,
                one.usage.completion_tokens,
                num_reused=max(0, one.usage.prompt_tokens - self._num_computed.get(name, 0)),
            )
            for name, one in answers.items()
        ]
        return forecast(costs, requests, concurrency)

    def plain_s(self, costs: StepCosts, answers: Answers, concurrency: int) -> float:
        """Return the seconds of that run at the speed that the machine had in these steps.

        Steps with prompts and those without are each as much faster or slower than step costs say as the
        target's own passes of that kind were. So a moment at which the machine was slow counts on both sides
        of a comparison, and only shapes are left to be forecast: one row beside several, and prompts' rows
        among them.
        """
        run = self.plain_run(costs, answers, concurrency)
        decode_s = run.seconds - run.prompt_s
        return self._level(costs, True) * run.prompt_s + self._level(costs, False) * decode_s

    def _level(self, costs: StepCosts, has_prompts: bool) -> float:
        expected = sum(costs.target.seconds(*one) for one in self._passes[has_prompts])
        return self._seconds[has_prompts] / expected if expected > 0 else 1.0


class RegretBench:
    """Runs cells on one engine, and keeps what they came to.

    Args:
        engine: with a `SpeculationPolicy`, and room for the highest concurrency; nothing else may use it.
        runs: where they are kept.
        settings: that take turns.
        warm_up: what is answered first.
        size: requests of a slice; none for one a client, 0 for all.
        loop: what answers requests; one on the engine unless given.
    """

    def __init__(
        self,
        engine: Engine,
        runs: RunFile,
        settings: Sequence[Mode],
        warm_up: WarmUp,
        size: int | None = None,
        loop: LoadLoop | None = None,
    ) -> None:
        policy = engine.policy
        assert isinstance(policy, SpeculationPolicy)
        self._engine, self._policy = engine, policy
        self._runs = runs
        self._settings = settings
        self._warm_up = warm_up
        self._size = size
        self._loop = loop or LoadLoop(engine)
        self._served = ServedSteps()
        engine.observers.add(self._served)

    def num_turns(self, requests: Sequence[LoadRequest], concurrency: int) -> int:
        """Return the turns of one repeat of a cell."""
        return len(self._settings) * len(self._slices(requests, concurrency))

    def _slices(self, requests: Sequence[LoadRequest], concurrency: int) -> list[Sequence[LoadRequest]]:
        return in_slices(requests, slice_size(self._size, concurrency))

    def cell(
        self, route: str, requests: Sequence[LoadRequest], concurrency: int, repeat: int, place: int
    ) -> Iterator[Mode]:
        """Run all settings of a cell once, slice by slice, and yield after each turn.

        What is kept already is not run again.

        Args:
            route: its name.
            requests: of the route, with different ids.
            concurrency: clients.
            repeat: from 1.
            place: of the route among others, so that not each begins with the same setting.
        """
        slices = self._slices(requests, concurrency)
        if self._runs.has(route, concurrency, [mode.label for mode in self._settings], repeat):
            for _ in slices:
                yield from self._settings
            return
        for mode in in_turns(self._settings, repeat, place):
            self._warm(requests, concurrency, mode)
        self._engine.forget_answers()
        turns: dict[str, list[Turn]] = defaultdict(list)
        states: dict[str, str] = {}
        for number, part in enumerate(slices):
            for mode in in_turns(self._settings, repeat + number, place):
                turns[mode.label].append(self._turn(part, concurrency, mode))
                if mode.is_auto:
                    states[mode.label] = self._state(part[0].route)
                yield mode
        off = [turn.answers for turn in turns[OFF]]
        found = [
            _run(route, concurrency, mode.label, repeat, turns[mode.label], off) for mode in self._settings
        ]
        self._runs.add(
            [
                replace(run, state=states[run.setting], step_error=self._policy.costs.median_error)
                if run.setting in states
                else run
                for run in found
            ]
        )

    def _warm(self, requests: Sequence[LoadRequest], concurrency: int, mode: Mode) -> None:
        num = self._warm_up.count(concurrency)
        if num:
            with self._heard(mode):
                self._loop.run(requests[-num:], min(concurrency, num), mode)

    def _turn(self, requests: Sequence[LoadRequest], concurrency: int, mode: Mode) -> Turn:
        costs, served = self._policy.costs, self._served
        own = [replace(request, tenant=mode.label) for request in requests]
        before = copy.deepcopy(costs) if mode.is_off else None
        served.clear()
        with self._heard(mode):
            answers, counts = self._loop.run(own, concurrency, mode, keeps_answers=True)
        plain_s = None
        if before is not None:
            plain_s = served.plain_run(before, answers, concurrency).seconds
        elif mode.is_auto:
            plain_s = served.plain_s(costs, answers, concurrency)
        return Turn(_slice(answers, counts, plain_s), answers)

    @contextmanager
    def _heard(self, mode: Mode) -> Iterator[None]:
        """Let the policy hear of what is its own alone, and of nothing but costs of what is not."""
        if mode.is_auto:
            yield
            self._policy.control.give_up()
            return
        observers, costs = self._engine.observers, CostsOnly(self._policy.costs)
        observers.remove(self._policy)
        observers.add(costs)
        try:
            yield
        finally:
            observers.remove(costs)
            observers.add(self._policy)

    def _state(self, label: str | None) -> str:
        report = self._policy.report(self._policy.routes.resolve(label))
        return report.state.value if report.reason is None else f"{report.state.value}: {report.reason.value}"


def _slice(answers: Answers, counts: CellCounts, plain_s: float | None) -> Slice:
    return Slice(
        num_tokens=sum(one.usage.completion_tokens for one in answers.values()),
        wall_s=counts.wall_s,
        num_decoded=len(counts.token_gaps_s),
        decode_s=sum(counts.token_gaps_s),
        num_steps=counts.steps.num_steps,
        plain_s=plain_s,
    )


def _run(
    route: str, concurrency: int, setting: str, repeat: int, turns: Sequence[Turn], off: Sequence[Answers]
) -> Run:
    results = [one for turn in turns for one in turn.answers.values()]
    drafted = sum(one.speculation.num_drafted for one in results)
    accepted = sum(one.speculation.num_accepted for one in results)
    steps = sum(one.speculation.num_steps for one in results)
    return Run(
        route=route,
        concurrency=concurrency,
        setting=setting,
        repeat=repeat,
        slices=tuple(turn.slice for turn in turns),
        num_outputs=len(results),
        num_identical=None if setting == OFF else _num_identical(turns, off),
        acceptance_rate=accepted / drafted if drafted else None,
        mean_draft_length=drafted / steps if steps else None,
    )


def _num_identical(turns: Sequence[Turn], off: Sequence[Answers]) -> int:
    return sum(
        one.token_ids == plain[name].token_ids and one.finish_reason == plain[name].finish_reason
        for turn, plain in zip(turns, off, strict=True)
        for name, one in turn.answers.items()
    )
