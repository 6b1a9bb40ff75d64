"""Who takes part in the next step, with how many rows, and who must wait."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from paceline.engine.room import Room
from paceline.engine.sequence import Sequence, SequenceStatus

MIN_MIXED_PREFILL = 8
"""Prompt rows that a step always has room for: few rows cost little more than reading the weights does."""


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
    """How much goes into one step, and how long one request may wait for others."""

    max_num_seqs: int = 8
    """Sequences that run at once."""
    max_num_batched_tokens: int = 512
    """Rows of one step, drafts included."""
    prefill_chunk: int = 256
    """Most prompt rows of one sequence in one step."""
    mixed_prefill_ratio: float = 1.5
    """Prompt rows for each other row of a step in which sequences decode. A row more never costs more than
    those before it did on average, so the step takes at most 1 + this times as long as without prompts."""
    max_overtaking_s: float = 1.0
    """A request that does not fit is overtaken by later ones that do, until it has waited this long."""
    joint_start_s: float = 4.0
    """How long after a stream's first token prompts that came before it still have all the rows they want."""

    def most_prompt_rows(self, num_beside: int) -> int:
        """Return how many rows of prompts a step may have beside `num_beside` others, one at least."""
        return max(MIN_MIXED_PREFILL, math.ceil(self.mixed_prefill_ratio * num_beside))

    def start_together(self, prompt_came_at: float, first_token_at: float, now: float) -> bool:
        """Whether a prompt came before any stream's first token, and not long ago: then it is not held back.

        Else the streams that have just begun would run for long at the cost of a full step and the yield of
        one with few sequences: all are better off when the prompts are out of the way first.
        """
        return prompt_came_at <= first_token_at and now - first_token_at < self.joint_start_s


DraftLength = Callable[[Sequence], int]
"""The policy's answer: how many drafts a decoding sequence should have verified now."""


class Scheduler:
    """First come, first served; out of blocks, the youngest gives way and is computed again later.

    Nobody starves. Of those who run, each that decodes has a row in every step, and prompts have theirs
    before drafts do. Of those who wait, the oldest is overtaken for a bounded time only; from then on nobody
    starts before it, and those who run come to an end.
    """

    def __init__(
        self,
        room: Room,
        limits: SchedulerLimits,
        draft_length: DraftLength,
        on_preempt: Callable[[Sequence], None],
    ) -> None:
        self._room = room
        self._limits = limits
        self._draft_length = draft_length
        self._on_preempt = on_preempt
        # Both by age, the oldest first.
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self.num_preemptions = 0
        self.is_short_of_blocks = False
        """Whether a request with a seat was kept waiting for blocks in the last step."""

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self._waiting or self._running)

    def decoding(self) -> list[Sequence]:
        """Return the sequences that decode, the oldest first."""
        return [sequence for sequence in self._running if sequence.is_decoding]

    def num_prompt_rows(self, now: float) -> int:
        """Return how many rows of prompts the next step is likely to have, before it is planned."""
        decoding, prefilling = self._split()
        seats = max(0, self._limits.max_num_seqs - len(self._running))
        prompts = [*prefilling, *self._waiting[:seats]]
        wanted = sum(min(s.num_uncomputed_tokens, self._limits.prefill_chunk) for s in prompts)
        most = max(0, self._limits.max_num_batched_tokens - len(decoding))
        if decoding and prompts and not self._start_together(decoding, prompts[0], now):
            most = min(most, self._limits.most_prompt_rows(len(decoding)))
        return min(wanted, most)

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
        bisect.insort(self._waiting, sequence, key=_age)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, whether it waits or runs."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def plan(self, now: float) -> StepPlan:
        """Pick the next step's parts and reserve their blocks; `now` is the engine's clock, seconds."""
        self._room.begin_step()
        decoding, prefilling = self._split()
        prompts = prefilling or self._waiting
        rows = _Rows(
            self._limits,
            len(decoding),
            has_prompts=bool(prompts),
            is_joint_start=bool(decoding and prompts) and self._start_together(decoding, prompts[0], now),
        )
        planned = [
            *self._plan_each(decoding, lambda s: self._fit_decoding(s, rows)),
            *self._plan_each(prefilling, lambda s: self._fit_prefill(s, rows)),
            *self._admit(rows, now),
        ]
        # A later sequence may have pushed out one that was planned before it.
        still_running = [p for p in planned if p.sequence.status is SequenceStatus.RUNNING]
        return StepPlan(tuple(sorted(still_running, key=lambda p: p.sequence.number)))

    def _start_together(self, decoding: Iterable[Sequence], prompt: Sequence, now: float) -> bool:
        first_token_at = min(s.first_token_at for s in decoding if s.first_token_at is not None)
        return self._limits.start_together(prompt.submitted_at, first_token_at, now)

    def _split(self) -> tuple[list[Sequence], list[Sequence]]:
        """Return those who run and decode, and those whose prompts are not through."""
        decoding = self.decoding()
        return decoding, [s for s in self._running if not s.is_decoding]

    def _plan_each(
        self, sequences: Iterable[Sequence], fit: Callable[[Sequence], PlannedSequence | None]
    ) -> Iterator[PlannedSequence]:
        for sequence in sequences:
            if sequence.status is SequenceStatus.RUNNING and (part := fit(sequence)) is not None:
                yield part

    def _fit_decoding(self, sequence: Sequence, rows: _Rows) -> PlannedSequence | None:
        """Reserve blocks for a row and its drafts; without room for the drafts, for the row alone."""
        if not rows.take_decoding():
            return None
        wanted = min(self._draft_length(sequence), sequence.max_useful_draft_length)
        draft_length = max(0, min(wanted, rows.num_for_drafts))
        end = sequence.num_computed_tokens + 1
        if draft_length and self._room.reserve_free(sequence, end + draft_length):
            rows.take_drafts(draft_length)
            return PlannedSequence(sequence, 1, draft_length)
        return PlannedSequence(sequence, 1, 0) if self._make_room(sequence, end) else None

    def _fit_prefill(self, sequence: Sequence, rows: _Rows) -> PlannedSequence | None:
        if not self._room.catch_up(sequence):
            return None
        num_tokens = min(sequence.num_uncomputed_tokens, self._limits.prefill_chunk, rows.num_for_prompts)
        if num_tokens < 1 or not self._make_room(sequence, sequence.num_computed_tokens + num_tokens):
            return None
        self._room.note_computing(sequence, num_tokens)
        rows.take_prompt(num_tokens)
        return PlannedSequence(sequence, num_tokens, 0)

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Hold blocks for positions 0 .. num_tokens - 1, at the cost of drafts, then of the youngest."""
        while not self._room.reserve(sequence, num_tokens):
            self._preempt(self._running[-1])
            if sequence.status is not SequenceStatus.RUNNING:
                return False
        return True

    def _admit(self, rows: _Rows, now: float) -> Iterator[PlannedSequence]:
        """Start waiting sequences while there are seats, rows, and blocks for all that they have so far."""
        self.is_short_of_blocks = False
        for sequence in self._waiting[: self._limits.max_num_seqs]:
            if len(self._running) >= self._limits.max_num_seqs or rows.num_for_prompts < 1:
                return
            if self._room.admit(sequence, len(self._running)):
                self._waiting.remove(sequence)
                bisect.insort(self._running, sequence, key=_age)
                sequence.status = SequenceStatus.RUNNING
                if (part := self._fit_prefill(sequence, rows)) is not None:
                    yield part
            else:
                self.is_short_of_blocks = True
                if now - sequence.submitted_at >= self._limits.max_overtaking_s:
                    return

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        sequence.preempt()
        self.add(sequence)
        self._on_preempt(sequence)
        self.num_preemptions += 1


class _Rows:
    """The rows of one step: one for each sequence that decodes, then those of prompts, then drafts."""

    def __init__(
        self, limits: SchedulerLimits, num_decoding: int, *, has_prompts: bool, is_joint_start: bool
    ) -> None:
        self._limits = limits
        self._is_joint_start = is_joint_start
        self._num_decoding = min(num_decoding, limits.max_num_batched_tokens)
        self._num_beside_prompts = self._num_decoding
        self._num_of_prompts = 0
        self._left = limits.max_num_batched_tokens - self._num_decoding
        # Kept from drafts, but never more than half: a short prompt should not end all drafting.
        self._kept = min(self._most_of_prompts(), -(-self._left // 2)) if has_prompts else 0

    @property
    def num_for_prompts(self) -> int:
        """Rows that prompts may take."""
        return min(self._most_of_prompts() - self._num_of_prompts, self._left)

    @property
    def num_for_drafts(self) -> int:
        """Rows that drafts may take."""
        return max(0, self._left - self._kept)

    def _most_of_prompts(self) -> int:
        if not self._num_beside_prompts or self._is_joint_start:
            return self._left + self._num_of_prompts
        return self._limits.most_prompt_rows(self._num_beside_prompts)

    def take_decoding(self) -> bool:
        """Take one row; False if there is none."""
        self._num_decoding -= 1
        return self._num_decoding >= 0

    def take_drafts(self, count: int) -> None:
        """Take rows for drafts."""
        self._left -= count
        self._num_beside_prompts += count

    def take_prompt(self, count: int) -> None:
        """Take rows for a prompt."""
        self._left -= count
        self._num_of_prompts += count


def _age(sequence: Sequence) -> int:
    return sequence.number
