"""One step while it happens, to be turned into a record once it is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from paceline.cache import BlockPool
from paceline.clock import Clock
from paceline.drafters.interface import DraftProposal
from paceline.engine.observer import Observers
from paceline.engine.scheduler import PlannedSequence, StepPlan
from paceline.engine.step import Drafts
from paceline.records import SpeculationParams, StreamChunk
from paceline.step_records import DraftPasses, SequenceStep, StepRecord

PLAN, DRAFT, VERIFY, COMMIT = range(4)
"""Stages, in their order."""


class Counts(Protocol):
    """What a record says of the engine as a whole."""

    @property
    def num_steps(self) -> int:
        """Steps so far, this one included."""

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""

    @property
    def num_waiting(self) -> int:
        """Sequences that wait."""

    @property
    def num_preemptions(self) -> int:
        """Since the engine began."""

    @property
    def pool(self) -> BlockPool:
        """The target's KV blocks."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What a sequence was before the step."""

    num_context_tokens: int
    num_output_tokens: int


@dataclass(slots=True)
class StepTrace:
    """The times and the beginnings of one step."""

    clock: Clock
    marks: list[float] = field(default_factory=list)
    """Readings of the clock at the beginning, and at the end of each stage."""
    plan: StepPlan = field(default_factory=lambda: StepPlan(()))
    _before: dict[int, _Before] = field(default_factory=dict)

    def mark(self) -> None:
        """Note the time at which a stage ended."""
        self.marks.append(self.clock())

    def begin(self, plan: StepPlan) -> None:
        """Note where the step's sequences stand."""
        self.plan = plan
        for part in plan.planned:
            sequence = part.sequence
            self._before[sequence.number] = _Before(sequence.num_computed_tokens, sequence.num_output_tokens)

    def seconds(self, stage: int) -> float:
        """Return how long a stage took."""
        return self.marks[stage + 1] - self.marks[stage]

    def tell(
        self,
        observers: Observers,
        counts: Counts,
        drafts: Drafts,
        passes: tuple[DraftPasses, ...],
        chunks: Iterable[StreamChunk],
    ) -> None:
        """Tell all observers of the step, now that it is over, and of the answers that ended with it."""
        if not observers:
            return
        if self.plan.planned:
            record = self._record(counts, drafts, passes, chunks)
            observers.tell(lambda observer: observer.on_step(record))
        for chunk in chunks:
            if chunk.result is not None:
                observers.tell_result(chunk.result)

    def _record(
        self, counts: Counts, drafts: Drafts, passes: tuple[DraftPasses, ...], chunks: Iterable[StreamChunk]
    ) -> StepRecord:
        num_sent = {(chunk.request_id, chunk.index): len(chunk.token_ids) for chunk in chunks}
        return StepRecord(
            number=counts.num_steps - 1,
            began_at=self.marks[0],
            plan_s=self.seconds(PLAN),
            draft_s=self.seconds(DRAFT),
            verify_s=self.seconds(VERIFY),
            commit_s=self.seconds(COMMIT),
            sequences=tuple(self._sequence(part, drafts, num_sent) for part in self.plan.planned),
            num_running=counts.num_running,
            num_waiting=counts.num_waiting,
            num_preemptions=counts.num_preemptions,
            num_kv_blocks=counts.pool.num_blocks,
            num_kv_blocks_used=counts.pool.num_used,
            draft_rows=tuple(rows for one in passes for rows in one.rows),
            draft_passes=passes if drafts.seconds else (),
        )

    def _sequence(
        self,
        part: PlannedSequence,
        drafts: Drafts,
        num_sent: Mapping[tuple[str, int], int],
    ) -> SequenceStep:
        sequence, before = part.sequence, self._before[part.sequence.number]
        request = sequence.request
        proposal = drafts.proposals.get(sequence.number, DraftProposal())
        return SequenceStep(
            request_id=request.id,
            index=sequence.index,
            route=request.route,
            drafter=sequence.drafter if request.speculation.is_adaptive else _named(request.speculation),
            num_context_tokens=before.num_context_tokens,
            num_tokens=part.num_tokens,
            is_decoding=before.num_output_tokens > 0,
            draft_length=part.draft_length,
            num_drafted=len(proposal.token_ids),
            num_accepted=sum(sequence.is_draft[before.num_output_tokens :]),
            num_new_tokens=max(0, sequence.num_output_tokens - before.num_output_tokens),
            num_sent_tokens=num_sent.get((request.id, sequence.index), 0),
            confidences=drafts.confidences.get(sequence.number, proposal.confidences),
            fallback=sequence.fallback,
            finish_reason=sequence.finish_reason,
            source=proposal.source,
            scored=drafts.scored.get(sequence.number, ()),
            number=sequence.number,
        )


def _named(speculation: SpeculationParams) -> str | None:
    return speculation.drafter if speculation.enabled else None
