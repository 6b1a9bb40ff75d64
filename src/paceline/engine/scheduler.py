"""Who takes part in the next step, with how many rows, and who must wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from paceline.cache import BlockPool
from paceline.engine.sequence import Sequence, SequenceStatus


@dataclass(frozen=True, slots=True)
class PlannedSequence:
    """One sequence's part in a step."""

    sequence: Sequence
    num_tokens: int
    """Known tokens to compute, from `num_computed_tokens` on."""
    draft_length: int
    """Most drafts to verify behind them."""

    @property
    def completes(self) -> bool:
        """Whether the step reaches the last known token, so that a new one can be drawn."""
        return self.num_tokens == self.sequence.num_uncomputed_tokens


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All parts of one step; sequences that came first stand first."""

    planned: tuple[PlannedSequence, ...]

    @property
    def drafting(self) -> tuple[PlannedSequence, ...]:
        """The parts that want drafts."""
        return tuple(p for p in self.planned if p.draft_length > 0)


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How much goes into one step."""

    max_num_seqs: int = 8
    """Sequences that run at once."""
    max_num_batched_tokens: int = 512
    """Rows of one step, drafts included; decoding comes first, prompts share the rest."""
    prefill_chunk: int = 256
    """Most prompt rows of one sequence in one step."""


DraftLength = Callable[[Sequence], int]
"""The policy's answer: how many drafts a decoding sequence should have verified now."""


class Scheduler:
    """First come, first served; out of blocks, the youngest gives way and is computed again later."""

    def __init__(
        self,
        pool: BlockPool,
        limits: SchedulerLimits,
        draft_length: DraftLength,
        on_preempt: Callable[[Sequence], None],
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._draft_length = draft_length
        self._on_preempt = on_preempt
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that run."""
        return len(self._running)

    def __iter__(self) -> Iterator[Sequence]:
        """All sequences that are not finished."""
        yield from self._running
        yield from self._waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, whether it waits or runs."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def plan(self) -> StepPlan:
        """Pick the next step's parts and reserve their blocks."""
        rows_left = self._limits.max_num_batched_tokens
        planned: list[PlannedSequence] = []
        # Decoding sequences first: a long prompt may not hold up those whose readers are waiting.
        for sequence in sorted(self._running, key=lambda s: s.num_uncomputed_tokens > 1):
            if sequence.status is not SequenceStatus.RUNNING or rows_left < 1:
                continue
            part = self._fit(sequence, rows_left)
            if part is not None:
                planned.append(part)
                rows_left -= part.num_tokens + part.draft_length
        while rows_left > 0 and (admitted := self._admit(rows_left)) is not None:
            planned.append(admitted)
            rows_left -= admitted.num_tokens
        # A later sequence may have pushed out one that was planned before it.
        still_running = [p for p in planned if p.sequence.status is SequenceStatus.RUNNING]
        return StepPlan(tuple(sorted(still_running, key=lambda p: p.sequence.number)))

    def _fit(self, sequence: Sequence, rows_left: int) -> PlannedSequence | None:
        """Reserve blocks for one running sequence, pushing out younger ones if they must make room."""
        num_tokens = min(sequence.num_uncomputed_tokens, self._limits.prefill_chunk, rows_left)
        wanted = self._draft_length(sequence) if sequence.is_decoding else 0
        draft_length = max(0, min(wanted, sequence.max_useful_draft_length, rows_left - num_tokens))
        end = sequence.num_computed_tokens + num_tokens
        if sequence.table.reserve(end + draft_length):
            return PlannedSequence(sequence, num_tokens, draft_length)
        while not sequence.table.reserve(end):
            self._preempt(self._running[-1])
            if sequence.status is not SequenceStatus.RUNNING:
                return None
        return PlannedSequence(sequence, num_tokens, 0)

    def _admit(self, rows_left: int) -> PlannedSequence | None:
        """Start the oldest waiting sequence if there is a seat, and blocks for all that it has so far."""
        if not self._waiting or len(self._running) >= self._limits.max_num_seqs:
            return None
        sequence = self._waiting[0]
        # A spare block for each runner, or the newcomer would be pushed out again a few steps later.
        num_needed = self._pool.blocks_for(len(sequence.token_ids)) + len(self._running)
        if num_needed > self._pool.num_free and self._running:
            return None
        if not sequence.table.reserve(len(sequence.token_ids)):
            return None
        self._waiting.popleft()
        self._running.append(sequence)
        sequence.status = SequenceStatus.RUNNING
        num_tokens = min(sequence.num_uncomputed_tokens, self._limits.prefill_chunk, rows_left)
        return PlannedSequence(sequence, num_tokens, 0)

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        sequence.preempt()
        self._waiting.appendleft(sequence)
        self._on_preempt(sequence)
        self.num_preemptions += 1
