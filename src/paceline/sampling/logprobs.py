"""Log-probabilities as reported to a user: of the target's own distribution, before any processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.records import PositionLogprobs
from paceline.sampling.selection import greatest
from paceline.sampling.state import SamplingState


def position_logprobs(logits: npt.NDArray[np.floating[Any]], token_id: int, num_top: int) -> PositionLogprobs:
    """Return the log-probability of the chosen token and those of the `num_top` most probable ones.

    Args:
        logits: [num_real_tokens], without padding rows.
        token_id: the token that was emitted.
        num_top: how many alternatives to list, equal ones by lowest id; those of no chance are left out.
    """
    scores = logits.astype(np.float64)
    peak = scores.max()
    log_sum = peak + np.log(np.exp(scores - peak).sum())
    top: list[int] = []
    if num_top:
        ids = greatest(scores, num_top)
        top = [int(i) for i in ids[np.argsort(-scores[ids], kind="stable")] if scores[i] > -np.inf]
    return PositionLogprobs(
        token_id, float(scores[token_id] - log_sum), tuple((i, float(scores[i] - log_sum)) for i in top)
    )


def step_logprobs(
    logits: npt.NDArray[np.floating[Any]], token_ids: Sequence[int], state: SamplingState
) -> tuple[PositionLogprobs, ...] | None:
    """Return one entry for each emitted token, from its row of `logits` [k + 1, vocab], if asked for."""
    num_top = state.params.logprobs
    if num_top is None:
        return None
    real = logits[:, : state.num_real_tokens]
    return tuple(position_logprobs(row, token, num_top) for row, token in zip(real, token_ids, strict=False))
