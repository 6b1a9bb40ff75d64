"""What a drafter would have drafted for an answer that stands, at every place of it, and so at every k.

Under coupled verification a draft stands exactly when it equals the target's own token, and behind drafts
that stood a draft model has read the target's own text. So one reading of the answer by the drafter tells how
many of its drafts in a row would have stood from each place on, and with that, what any draft length would
have come to, step by step, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

MOST_DRAFTS = 16
"""Draft lengths that are looked at."""
MIXED_MATCH_LENGTH = 8
"""Matches that the mixed drafter takes at a fixed draft length; as `drafters.mixed` has it."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One drafter on one answer. Place i is the i-th token of the output, from 0."""

    proposed: NDArray[np.int64]  # [num_tokens]
    """Drafts that it makes at each place, where nothing limits them."""
    agreed: NDArray[np.int64]  # [num_tokens]
    """Of these, how many in a row from the first are the answer's own tokens."""
    has_passes: NDArray[np.bool_]  # [num_tokens]
    """Whether a draft model makes them, a pass each."""

    @classmethod
    def of_model(cls, matches: Sequence[bool], most: int = MOST_DRAFTS) -> Self:
        """Return the trace of a draft model that draws, or does not, each token of an answer."""
        agreed = np.zeros(len(matches), dtype=np.int64)
        run = 0
        for place in range(len(matches) - 1, -1, -1):
            run = run + 1 if matches[place] else 0
            agreed[place] = min(run, most)
        return cls(np.full(len(matches), most), agreed, np.ones(len(matches), dtype=np.bool_))

    @classmethod
    def of_matches(cls, proposed: Sequence[int], agreed: Sequence[int]) -> Self:
        """Return the trace of a look-up, which makes no passes."""
        return cls(np.array(proposed, dtype=np.int64), np.array(agreed, dtype=np.int64),
                   np.zeros(len(proposed), dtype=np.bool_))  # fmt: skip

    def mixed_with(self, model: Trace, match_lengths: Sequence[int]) -> Trace:
        """Return the trace of a look-up whose long matches are taken, and of a draft model elsewhere."""
        is_taken = (np.array(match_lengths, dtype=np.int64) >= MIXED_MATCH_LENGTH) & (self.proposed > 0)
        return Trace(
            np.where(is_taken, self.proposed, model.proposed),
            np.where(is_taken, self.agreed, model.agreed),
            ~is_taken,
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """What one answer comes to at one draft length, counted as the engine does."""

    num_steps: int
    num_drafted: int
    num_accepted: int
    num_emitted: int
    """Tokens behind the first."""
    num_passes: int
    """Rows of draft passes: one for each draft that a draft model made."""
    drafted_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]

    @property
    def num_wasted(self) -> int:
        """Drafts that fell."""
        return self.num_drafted - self.num_accepted


def step(trace: Trace, place: int, num_tokens: int, limit: int, length: int) -> tuple[int, int, int]:
    """Return (drafted, accepted, emitted) of a step.

    Args:
        trace: of the drafter.
        place: tokens that are out, 1 at least.
        num_tokens: of the whole answer.
        limit: most tokens that it could have had; drafts beyond are of no use.
        length: drafts that are asked for.
    """
    drafted = max(0, min(length, int(trace.proposed[place]), limit - place - 1))
    agreed = min(int(trace.agreed[place]), drafted)
    emitted = min(agreed + 1, num_tokens - place)
    return drafted, min(agreed, emitted), emitted


def tally(trace: Trace, limit: int, length: int) -> Tally:
    """Return what an answer comes to at a draft length, for a drafter that is ready from its first step on.

    Exact but for one thing: behind a wrong guess a draft model may draw an end token and stop, which its
    reading of the answer cannot tell; then it drafts a little less, and accepts and emits the same.
    """
    num_tokens = len(trace.proposed)
    place = min(1, num_tokens)
    steps = drafts = passes = accepts = 0
    drafted_at, accepted_at = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    while place < num_tokens:
        drafted, accepted, emitted = step(trace, place, num_tokens, limit, length)
        drafted_at[:drafted] += 1
        accepted_at[:accepted] += 1
        passes += drafted if trace.has_passes[place] else 0
        steps, drafts, accepts, place = steps + 1, drafts + drafted, accepts + accepted, place + emitted
    return Tally(steps, drafts, accepts, max(0, num_tokens - 1), passes,
                 tuple(drafted_at.tolist()), tuple(accepted_at.tolist()))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """What one drafter's reading of one answer gave, as it is kept in a file."""

    drafter: str
    """"suffix", or "model" or "model:NAME"."""
    request_id: str
    matches: tuple[bool, ...] = ()
    """Of a draft model: whether it draws each token of the answer."""
    confidences: tuple[float, ...] = ()
    """Of a draft model: how sure it is of what it draws."""
    proposed: tuple[int, ...] = ()
    """Of a look-up: drafts at each place."""
    agreed: tuple[int, ...] = ()
    match_lengths: tuple[int, ...] = ()

    @property
    def trace(self) -> Trace:
        """What it would have drafted where."""
        if self.matches:
            return Trace.of_model(self.matches)
        return Trace.of_matches(self.proposed, self.agreed)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, in few characters."""
        if self.matches:
            return {
                "drafter": self.drafter,
                "request_id": self.request_id,
                "matches": "".join("+" if one else "-" for one in self.matches),
                "confidences": [round(one, 3) for one in self.confidences],
            }
        return {
            "drafter": self.drafter,
            "request_id": self.request_id,
            "proposed": list(self.proposed),
            "agreed": list(self.agreed),
            "match_lengths": list(self.match_lengths),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the reading of plain values."""
        return cls(
            str(value["drafter"]),
            str(value["request_id"]),
            tuple(one == "+" for one in value.get("matches", "")),
            tuple(value.get("confidences", ())),
            tuple(value.get("proposed", ())),
            tuple(value.get("agreed", ())),
            tuple(value.get("match_lengths", ())),
        )
