"""What an engine and its policy say to each other in a step: frozen views one way, draft lengths the other.

An engine asks `plan` once a step, before anything is drafted; lets its draft loop ask the plan's rule whether
to go on; and tells `on_step` and `on_finish` what happened (`paceline.step_records`). It needs to know
nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from paceline.errors import InvalidParameterError
from paceline.records import GenerationResult, SpeculationParams
from paceline.step_records import StepRecord


class SequenceView(NamedTuple):
    """One decoding sequence, before a step."""

    number: int
    """The engine's own name for it; never used twice."""
    route: str | None
    """The label that the request came with."""
    speculation: SpeculationParams
    num_context_tokens: int
    """Tokens of prompt and answer so far."""
    num_output_tokens: int
    most_drafts: int
    """Drafts beyond this could not be used: the answer's cap or the context ends there."""
    drafters: tuple[str, ...]
    """Drafters that could propose for it now: those that are loaded and have not failed on it."""
    num_draft_missing: int = 1
    """Tokens that the draft model has not computed of it; 1 or 2 where it is up to date."""
    holds_drafts: bool = False
    """Whether draft KV is held for it."""
    can_score: bool = False
    """Whether its draft model can say how it would have fared on text that is there already."""
    held_by: str | None = None
    """The draft model that holds it; others would have to read all of it. None where that is the only one."""

    def num_missing_of(self, model: str) -> int:
        """Return how many tokens a draft model has not computed of it."""
        return self.num_draft_missing if self.held_by in (None, model) else self.num_context_tokens


class StepView(NamedTuple):
    """All that is to be known of a step before it is planned."""

    now: float
    """The engine's clock, seconds."""
    sequences: Sequence[SequenceView]
    """Those that decode, in the engine's order."""
    num_prompt_rows: int = 0
    """Prompt rows that the step will have beside them, an estimate."""
    num_waiting: int = 0
    num_blocks: int = 0
    """KV blocks that the target and its drafts share."""
    num_blocks_used: int = 0
    """Of these, held by anybody; cached blocks that nobody holds count as free."""
    num_blocks_of_drafts: int = 0
    num_preemptions: int = 0
    """Since the engine began."""
    is_short_of_blocks: bool = False
    """Whether a request was kept waiting for blocks in the last step."""


class DraftChoice(NamedTuple):
    """The policy's word on one sequence for one step."""

    draft_length: int = 0
    drafter: str | None = None
    keeps_drafts: bool = True
    """Whether draft KV that it holds is to be kept for later steps; if not, the engine gives it back."""
    scores: bool = False
    """Instead of drafting, let the draft model read what it lacks of the sequence, and say at each token of
    the answer whether it would have drafted it: a probe that costs one pass and no row of the target."""


PLAIN = DraftChoice()
RELEASED = DraftChoice(keeps_drafts=False)


class DraftRule(Protocol):
    """Asked while drafts are made, with the drafter's own confidence in them. Deterministic."""

    def going_on(self, drawn: Sequence[tuple[int, float]], source: str = "model") -> Sequence[bool]:
        """Say for each sequence that just drew a token whether its next token is worth its cost.

        Args:
            drawn: (sequence number, confidence in the token drawn), each sequence's tokens in their order.
            source: the drafter that drew them.
        """

    def prefers_match(self, number: int, confidences: Sequence[float]) -> bool:
        """Say whether a suffix match with these confidences is worth more than asking the draft model."""

    def lengths(self, proposals: Sequence[tuple[int, str, Sequence[float], bool]]) -> Sequence[int]:
        """Return how many drafts of each proposal are worth a row of the target.

        Args:
            proposals: (sequence number, drafter that proposed, confidences, whether it may be cut). Cutting
                is for deterministic proposals: to drop a *sampled* token by looking at it would change the
                distribution under rejection verification.
        """


class DraftPlan(NamedTuple):
    """The answer to a view."""

    choices: Sequence[DraftChoice]
    """One for each sequence of the view, in its order."""
    rule: DraftRule | None = None
    """None lets every draft be made and verified."""


class DraftPolicy(Protocol):
    """What an engine asks for draft lengths."""

    def check(self, route: str | None, speculation: SpeculationParams) -> None:
        """Refuse a request that could not be chosen for. Safe in any thread.

        Raises:
            InvalidParameterError: there is no such route, or it asks for what this policy does not do.
        """

    def plan(self, view: StepView) -> DraftPlan:
        """Choose the draft length of each sequence for this step."""

    def on_step(self, record: StepRecord) -> None:
        """Learn from a step."""

    def on_finish(self, result: GenerationResult) -> None:
        """Learn from an answer that ended, however it ended."""

    def wants_scored(self, route: str | None) -> str | None:
        """Return the draft model by which an answer of this route is worth being scored in idle time; none if
        by none."""

    def on_scored(self, route: str | None, model: str, scored: Sequence[tuple[float, bool]]) -> None:
        """Learn from text that a draft model scored in idle time; see `SequenceStep.scored`."""


class FixedPolicy:
    """The simplest policy: what the request says, whatever it costs."""

    def check(self, route: str | None, speculation: SpeculationParams) -> None:
        """Refuse requests that leave their draft length to the policy."""
        if speculation.is_adaptive:
            raise InvalidParameterError(
                given=f"speculation enabled = {speculation.enabled!r}",
                expected="true or false: this engine was started without a policy",
                remedy='Start it with speculation="auto" (--speculation auto) or with routes',
            )

    def plan(self, view: StepView) -> DraftPlan:
        """Return each request's own draft length and drafter."""
        return DraftPlan([_as_asked(sequence) for sequence in view.sequences])

    def on_step(self, record: StepRecord) -> None:
        """Learn nothing."""

    def on_finish(self, result: GenerationResult) -> None:
        """Learn nothing."""

    def wants_scored(self, route: str | None) -> str | None:
        """Want nothing."""
        return None

    def on_scored(self, route: str | None, model: str, scored: Sequence[tuple[float, bool]]) -> None:
        """Learn nothing."""


def _as_asked(sequence: SequenceView) -> DraftChoice:
    speculation = sequence.speculation
    drafter = speculation.drafter
    if not speculation.enabled or drafter not in sequence.drafters:
        return PLAIN
    return DraftChoice(min(speculation.draft_length, sequence.most_drafts), drafter)
