"""What one step did, as frozen records: what metrics count and what the policy learns from."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.records import FinishReason


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """One sequence's part in a step."""

    request_id: str
    index: int
    """Which of the request's n choices."""
    route: str | None
    drafter: str | None
    """Name of the drafter, or none where speculation was off."""
    num_context_tokens: int
    """Positions whose KV was there before the step."""
    num_tokens: int
    """Known tokens that were computed: a chunk of a prompt, or the last token of an answer."""
    is_decoding: bool
    """Whether the answer's first token was out before the step."""
    draft_length: int
    """Drafts that were planned."""
    num_drafted: int
    """Drafts that were verified; fewer where the drafter had fewer, or a grammar cut them."""
    num_accepted: int
    """Of these, how many joined the answer; those behind its end do not count."""
    num_new_tokens: int
    """Tokens that joined the answer, the target's own included."""
    num_sent_tokens: int
    """Tokens that left for the caller. Over all steps of an answer they add up to its usage, which new
    tokens need not: a stop string cuts off tokens that had joined before."""
    confidences: tuple[float, ...] = ()
    """The drafter's own estimate for each draft that it made; the first `num_drafted` of them were
    verified."""
    fallback: str | None = None
    """Why the sequence drafts no more, once it does not."""
    finish_reason: FinishReason | None = None
    """Why it ended, if it ended in this step."""
    source: str | None = None
    """Who made the drafts, where a drafter asks others; else the drafter itself."""
    scored: tuple[tuple[float, bool], ...] = ()
    """Where the draft model was asked about tokens that stand already: its confidence in the token that it
    would have drafted, and whether that is the one that stands, for one position after the other."""
    number: int = -1
    """The engine's own name for the sequence, never used twice."""

    @property
    def num_rows(self) -> int:
        """Rows that it brought to the target's forward pass."""
        return self.num_tokens + self.num_drafted


@dataclass(frozen=True, slots=True)
class DraftPasses:
    """The forward passes of one draft model in a step."""

    model: str
    rows: tuple[int, ...]
    """Of each of them, in their order."""
    seconds: float
    """Of the drafters that asked it."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the engine, all sequences together."""

    number: int
    """From 0, counting steps in which something was computed."""
    began_at: float
    """Reading of the engine's clock, seconds."""
    plan_s: float
    draft_s: float
    verify_s: float
    """The target's forward pass."""
    commit_s: float
    """Judging drafts, growing sequences and sending what is certain."""
    sequences: tuple[SequenceStep, ...]
    num_running: int
    """Sequences that hold blocks after the step."""
    num_waiting: int
    """Sequences that wait after the step."""
    num_preemptions: int
    """Since the engine began."""
    num_kv_blocks: int
    """The target's KV blocks."""
    num_kv_blocks_used: int
    draft_rows: tuple[int, ...] = ()
    """Rows of each forward pass of draft models, in their order."""
    draft_passes: tuple[DraftPasses, ...] = ()
    """The same model by model, where there are several."""

    @property
    def num_rows(self) -> int:
        """Rows of the target's forward pass."""
        return sum(sequence.num_rows for sequence in self.sequences)

    def passes_by_model(self, single: str) -> tuple[DraftPasses, ...]:
        """Return the passes of each draft model; `single` is what the only one is called."""
        if self.draft_passes or not self.draft_rows:
            return self.draft_passes
        return (DraftPasses(single, self.draft_rows, self.draft_s),)

    @property
    def duration_s(self) -> float:
        """Seconds from plan to the last chunk."""
        return self.plan_s + self.draft_s + self.verify_s + self.commit_s


@dataclass(frozen=True, slots=True)
class Stall:
    """A sequence that made no progress for too long, or a step that does not end."""

    request_id: str
    """Empty where a step is stuck, which holds up everybody."""
    index: int
    since_s: float
    """Seconds since something was last computed for it, or since the step began."""
    is_waiting: bool
    """Whether it has no blocks; else it runs and is not served."""
    is_step_stuck: bool
    """Whether the engine has been inside one step all this time."""
