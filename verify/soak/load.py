"""Closed-loop traffic on one engine: requests of the pool with drafts of every kind, some of whom leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.engine.engine import Engine
from paceline.errors import PacelineError
from paceline.records import (
    FinishReason,
    GenerationResult,
    Request,
    SpeculationParams,
    StreamChunk,
    Verification,
)
from paceline.step_records import StepRecord
from verify.soak.answers import RightAnswer, Sampled, describe_error, essence, scoring_params
from verify.soak.templates import Template

ROUTES = ("chat", "code", "rag", None)
TENANTS = ("a", "b", None)
LEAVING_SHARE = 0.27
"""A fifth leaves in fact: some were refused, or have their answer before that."""
LONGEST_STAY = 14
"""Steps after which whoever leaves has left."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One request of the traffic."""

    number: int
    template: Template
    request: Request
    leaves_after: int | None
    """Steps from submission until the caller is gone; none stays to the end."""
    is_reported: bool
    """Whether the one who leaves wants to hear how far the answer came."""

    @property
    def is_free(self) -> bool:
        """Whether more than one answer is right."""
        rule = self.request.speculation.verification
        is_off = not self.request.speculation.enabled
        return rule is Verification.REJECTION and not self.request.sampling.is_greedy and not is_off


def make_plan(number: int, templates: Sequence[Template], drafters: Sequence[str], seed: int) -> Plan:
    """Return request `number` of the traffic of a seed, whatever came before it.

    Every template has its turn in each round of all of them, in an order of its own.
    """
    number_of_round, place = divmod(number, len(templates))
    order = np.random.default_rng((seed, 1, number_of_round)).permutation(len(templates))
    template = templates[int(order[place])]
    rng = np.random.default_rng((seed, 2, number))
    sampling, speculation = template.sampling, _speculation(rng, drafters)
    if speculation.enabled and speculation.verification is Verification.REJECTION and not sampling.is_greedy:
        sampling = scoring_params(sampling)
    request = Request(
        id=f"soak-{number}",
        prompt_token_ids=template.token_ids,
        sampling=sampling,
        speculation=speculation,
        seed=(sampling.seed or 0) % 2**64,
        route=ROUTES[int(rng.integers(len(ROUTES)))],
        tenant=TENANTS[int(rng.integers(len(TENANTS)))],
    )
    leaves = rng.random() < LEAVING_SHARE
    return Plan(
        number,
        template,
        request,
        leaves_after=int(rng.integers(LONGEST_STAY)) if leaves else None,
        is_reported=bool(rng.random() < 0.5),
    )


def _speculation(rng: np.random.Generator, drafters: Sequence[str]) -> SpeculationParams:
    if rng.random() < 0.15:
        return SpeculationParams(enabled=False)
    return SpeculationParams(
        drafter=drafters[int(rng.integers(len(drafters)))],
        draft_length=int(rng.integers(0, 9)),
        verification=Verification.REJECTION if rng.random() < 0.2 else Verification.COUPLED,
    )


@dataclass(slots=True)
class Counts:
    """An observer: what steps said of answers has to be what the answers say."""

    num_drafted: int = 0
    num_accepted: int = 0
    faults: list[str] = field(default_factory=list)
    _sent: Counter[tuple[str, int]] = field(default_factory=Counter)

    def on_step(self, record: StepRecord) -> None:
        """Add up."""
        for part in record.sequences:
            self.num_drafted += part.num_drafted
            self.num_accepted += part.num_accepted
            self._sent[part.request_id, part.index] += part.num_sent_tokens

    def on_finish(self, result: GenerationResult) -> None:
        """Compare."""
        num_sent = self._sent.pop((result.id, result.index), 0)
        is_whole = result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if is_whole and num_sent != result.usage.completion_tokens:
            self.faults.append(f"{result.id}: {num_sent} tokens sent, usage {result.usage}")


@dataclass(slots=True)
class _Running:
    plan: Plan
    submitted_at: int
    """In steps."""
    texts: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    results: dict[int, GenerationResult] = field(default_factory=dict)


class Traffic:
    """Sends requests, takes what comes back, and holds it against the right answers.

    Args:
        engine: nobody else uses it.
        right: answers by the number of the template.
        concurrency: requests at a time, more than may run so that some wait.
    """

    def __init__(self, engine: Engine, right: Mapping[int, RightAnswer], concurrency: int) -> None:
        self._engine = engine
        self._right = right
        self._concurrency = concurrency
        self._running: dict[str, _Running] = {}
        self._num_steps = 0
        self.num_requests = 0
        self.num_aborted = 0
        self.num_right: Counter[str] = Counter()
        """Requests by kind that came to their right end."""
        self.num_ended: Counter[str] = Counter()
        self.sampled: list[Sampled] = []
        """Answers that are still to be looked into."""
        self.faults: list[str] = []
        self.counts = Counts()
        engine.observers.add(self.counts)

    def run(self, plans: Iterable[Plan]) -> None:
        """Make these requests, and return once the last has ended."""
        waiting = iter(plans)
        self._fill(waiting)
        while self._running or self._engine.has_work:
            for running in [r for r in self._running.values() if self._leaves(r)]:
                self._abort(running)
            for chunk in self._engine.step():
                self._take(chunk)
            self._num_steps += 1
            self._fill(waiting)

    def _fill(self, waiting: Iterator[Plan]) -> None:
        while len(self._running) < self._concurrency and (plan := next(waiting, None)) is not None:
            self.num_requests += 1
            try:
                self._engine.submit(plan.request)
            except PacelineError as error:
                self._end(
                    plan, describe_error(error) == self._right[plan.template.number].refusal, str(error)
                )
            else:
                self._running[plan.request.id] = _Running(plan, self._num_steps)

    def _leaves(self, running: _Running) -> bool:
        after = running.plan.leaves_after
        return after is not None and self._num_steps - running.submitted_at >= after

    def _abort(self, running: _Running) -> None:
        plan = running.plan
        if not self._engine.abort(plan.request.id, is_reported=plan.is_reported):
            return  # its last chunk is on its way
        self.num_aborted += 1
        if not plan.is_reported:
            del self._running[plan.request.id]

    def _take(self, chunk: StreamChunk) -> None:
        running = self._running.get(chunk.request_id)
        if running is None or chunk.index in running.results:
            self.faults.append(f"{chunk.request_id}: a chunk that nobody waits for")
            return
        running.texts[chunk.index] = running.texts.get(chunk.index, "") + chunk.text
        running.token_ids[chunk.index] = running.token_ids.get(chunk.index, ()) + chunk.token_ids
        if chunk.result is None:
            return
        running.results[chunk.index] = chunk.result
        if len(running.results) == running.plan.request.sampling.n:
            del self._running[chunk.request_id]
            self._judge(running)

    def _judge(self, running: _Running) -> None:
        plan = running.plan
        results = [running.results[index] for index in sorted(running.results)]
        for result in results:
            streamed = running.texts[result.index], running.token_ids[result.index]
            if streamed != (result.text, result.token_ids):
                self.faults.append(f"{result.id}: what was streamed is not what was answered")
        right = self._right[plan.template.number].results
        if any(result.finish_reason is FinishReason.ABORT for result in results):
            self._judge_aborted(plan, results, right)
        elif plan.is_free:
            prompt = plan.template.token_ids
            wrong = [r for r in results if r.error is not None]
            self.sampled += [Sampled(prompt, plan.request.sampling, r) for r in results if r.error is None]
            expected = [describe_error(r.error) for r in right]
            self._end(plan, not wrong or expected == [describe_error(r.error) for r in results], "failed")
        else:
            is_right = [essence(r) for r in results] == [essence(r) for r in right]
            self._end(plan, is_right, f"{plan.request.speculation}: not the answer of plain decoding")

    def _judge_aborted(
        self, plan: Plan, results: Sequence[GenerationResult], right: Sequence[GenerationResult]
    ) -> None:
        """What there is of an answer is how the right one begins, but for stop strings still to be cut."""
        if plan.is_free or plan.request.sampling.stop:
            return
        for result, whole in zip(results, right, strict=True):
            if result.token_ids != whole.token_ids[: len(result.token_ids)]:
                self.faults.append(f"{result.id}: aborted, and not how the right answer begins")

    def _end(self, plan: Plan, is_right: bool, what: str) -> None:
        self.num_ended[plan.template.kind] += 1
        if is_right:
            self.num_right[plan.template.kind] += 1
        else:
            self.faults.append(f"{plan.request.id} ({plan.template.kind}): {what}")
