"""What a verify step decided for one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.records import PositionLogprobs


@dataclass(frozen=True, slots=True)
class Verdict:
    """The tokens that one step emits for one sequence."""

    token_ids: tuple[int, ...]
    """The accepted drafts and, last, the target's own token: corrected or bonus. Never empty."""
    num_accepted: int
    """How many of them were drafted: always one fewer than there are."""
    logprobs: tuple[PositionLogprobs, ...] | None = None
    """One for each token; none where the request did not ask."""


def check_num_rows(logits: npt.NDArray[np.floating[Any]], draft_token_ids: Sequence[int]) -> None:
    """Refuse logits [n, vocab] whose n is not one more than there are drafts: the engine's own mistake."""
    if logits.ndim != 2 or len(logits) != len(draft_token_ids) + 1:
        raise ValueError(
            f"logits of shape {logits.shape} for {len(draft_token_ids)} drafts; one more row was expected"
        )
