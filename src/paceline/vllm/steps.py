"""vLLM's steps as the records that the policy learns from.

vLLM drafts at the end of a step what the next one verifies, and says of a step only how long it took. So the
time of each step is taken apart here, into the target's pass and the drafter's passes, by what is known of
both; and the drafter's part is told with the step that verifies its drafts. What was not explained goes for
the most part to the drafter, since the target alone is seen in every step in which nobody drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.policy.step_costs import StepCosts

DRAFT_DOUBT = 9.0
"""How much more the drafter's time is in doubt than the target's: the ratio of variances, in units of the
squares of what is expected."""
LEAST_SHARE = 0.02
"""Of a step's time, for either, where both ran."""


class ScheduledPart(NamedTuple):
    """One request's part in a step, as it was scheduled."""

    request_id: str
    num_context_tokens: int
    """Positions that were computed before."""
    num_tokens: int
    """Known tokens that are computed: of a prompt, or the last of an answer."""
    num_drafted: int
    """Drafts that are verified beside them."""
    has_output: bool
    """Whether a token of its answer was out before, or on its way."""

    @property
    def is_decoding(self) -> bool:
        """Whether it goes on with its answer; else it computes its prompt, or all it had before it gave its
        blocks away."""
        return self.has_output and self.num_tokens == 1


class Candidate(NamedTuple):
    """A request for which drafts can be made in a step, for the next one to verify."""

    request_id: str
    num_context_tokens: int
    num_output_tokens: int
    most_drafts: int
    """Beyond this they could not be used."""


class Load(NamedTuple):
    """The engine core between two steps."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_blocks_used: int
    num_prompt_rows: int
    """Rows of prompts that the next step will have, an estimate."""
    is_short_of_blocks: bool


NO_LOAD = Load(0, 0, 0, 0, 0, False)


class Outcome(NamedTuple):
    """What came of one request's part in a step."""

    num_drafted: int
    """Drafts that were verified; a grammar may have left fewer than were scheduled."""
    num_accepted: int
    num_new_tokens: int
    is_finished: bool


@dataclass(frozen=True, slots=True)
class DraftedAhead:
    """The drafter's passes at the end of a step, for the next one."""

    rows: tuple[int, ...]
    """Of each pass; none for look-ups."""
    seconds: float = 0.0


def pass_rows(num_rows: int, num_sequences: int, depth: int) -> tuple[int, ...]:
    """Return the rows of the drafter's passes for drafts of so many tokens.

    vLLM's first pass reads all rows of the step, so that the drafter's KV follows the target's; the others
    have a row for each sequence."""
    return () if depth <= 0 else (num_rows,) + (num_sequences,) * (depth - 1)


def take_apart(
    seconds: float,
    costs: StepCosts,
    drafter: str,
    *,
    num_rows: int,
    num_sequences: int,
    num_context_tokens: int,
    passes: Sequence[int],
) -> tuple[float, float]:
    """Return the target's and the drafter's seconds of a step.

    Args:
        seconds: of both.
        costs: what they are known to take.
        drafter: the draft model's name there.
        num_rows: of the target's pass.
        num_sequences: in it.
        num_context_tokens: positions before its rows, of all sequences.
        passes: rows of each of the drafter's passes.
    """
    if not passes or seconds <= 0:
        return max(0.0, seconds), 0.0
    target = costs.target.seconds(num_rows, num_sequences, num_context_tokens)
    curve = costs.draft(drafter)
    draft = sum(curve.seconds(rows) for rows in passes)
    doubt = DRAFT_DOUBT * draft * draft
    draft += (seconds - target - draft) * doubt / (doubt + target * target)
    draft = min(max(draft, LEAST_SHARE * seconds), (1 - LEAST_SHARE) * seconds)
    return seconds - draft, draft
