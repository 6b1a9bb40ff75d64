"""From a step of vLLM that is over to the record of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.config.drafter_names import MODEL
from paceline.policy.interface import PLAIN, DraftChoice
from paceline.policy.step_costs import StepCosts
from paceline.records import FinishReason
from paceline.step_records import SequenceStep, StepRecord
from paceline.vllm.pipelined import Probes
from paceline.vllm.requests import RouteRequest
from paceline.vllm.steps import DraftedAhead, Load, Outcome, ScheduledPart, take_apart

NOTHING = Outcome(0, 0, 0, is_finished=False)
"""Of a part whose request is gone, or whose tokens do not count."""


class Planned(NamedTuple):
    """One request's part in a step that is on its way."""

    part: ScheduledPart
    request: RouteRequest
    choice: DraftChoice
    """What the policy had said of the drafts that it verifies."""


class Step(NamedTuple):
    """A step that is on its way."""

    began_at: float
    plan_s: float
    planned: Sequence[Planned]
    passes: tuple[int, ...]
    """Rows of each of the drafter's passes at its end."""
    probes: Probes
    """Of the plan by which the drafts that it verifies were made."""
    is_off: bool = False
    """Whether it verifies nothing, and no route allowed any drafts when it was planned."""


def part_of(one: Planned, outcomes: Mapping[str, Outcome], now: float) -> SequenceStep:
    """Return a request's part in a step that is over, and count it with the request.

    Args:
        one: the part.
        outcomes: of all requests whose tokens count.
        now: the clock's reading.
    """
    part, request, choice = one
    outcome = outcomes.get(request.id, NOTHING)
    drafts = choice if part.is_decoding and outcome is not NOTHING else PLAIN
    if part.is_decoding:
        request.count(outcome.num_drafted, outcome.num_accepted, outcome.num_new_tokens)
        request.drafter = drafts.drafter or request.drafter
    if outcome.num_new_tokens:
        request.emit(outcome.num_new_tokens, now)
    return SequenceStep(
        request.id, 0, request.route, drafts.drafter, part.num_context_tokens, part.num_tokens,
        part.is_decoding, max(drafts.draft_length, outcome.num_drafted), outcome.num_drafted,
        outcome.num_accepted, outcome.num_new_tokens, outcome.num_new_tokens,
        finish_reason=FinishReason.STOP if outcome.is_finished else None, number=request.number,
    )  # fmt: skip


class StepTiming:
    """Takes each step's time apart, and keeps the drafter's part for the step that verifies its drafts.

    Args:
        costs: the policy's.
        now: the clock's reading.
    """

    def __init__(self, costs: StepCosts, now: float) -> None:
        self._costs = costs
        self._done_at = now
        self._ahead = DraftedAhead(())
        self._num_steps = 0

    def record(
        self,
        step: Step,
        parts: Sequence[SequenceStep],
        load: Load,
        num_preemptions: int,
        told_at: float,
        now: float,
    ) -> StepRecord:
        """Return the record of a step.

        Args:
            step: as it was planned.
            parts: of its requests, with what came of them.
            load: the engine core when it was planned.
            num_preemptions: since the beginning.
            told_at: the clock's reading when its output came.
            now: the clock's reading when that was taken in.
        """
        done_at, self._done_at = self._done_at, now
        # Where steps overlap, one begins to be worked on when the one before is done.
        began_at = max(step.began_at, done_at)
        plan_s = min(step.plan_s, max(0.0, told_at - began_at)) if began_at == step.began_at else 0.0
        target_s, draft_s = take_apart(
            told_at - began_at - plan_s,
            self._costs,
            MODEL,
            num_rows=sum(part.num_rows for part in parts),
            num_sequences=len(parts),
            num_context_tokens=sum(part.num_context_tokens for part in parts),
            passes=step.passes,
        )
        ahead, self._ahead = self._ahead, DraftedAhead(step.passes, draft_s)
        self._num_steps += 1
        return StepRecord(
            number=self._num_steps - 1, began_at=began_at, plan_s=plan_s, draft_s=ahead.seconds,
            verify_s=target_s, commit_s=now - told_at, sequences=tuple(parts), num_running=load.num_running,
            num_waiting=load.num_waiting, num_preemptions=num_preemptions, num_kv_blocks=load.num_blocks,
            num_kv_blocks_used=load.num_blocks_used, draft_rows=ahead.rows,
        )  # fmt: skip
