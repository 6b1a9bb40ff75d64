"""Log-probabilities as reported to a user: of the target's own distribution, before any processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.kernels.native import native
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
    log_sum = _log_sum_exp(logits)
    top = tuple((i, float(logits[i]) - log_sum) for i in _most_probable(logits, num_top))
    return PositionLogprobs(token_id, float(logits[token_id]) - log_sum, top)


def _log_sum_exp(logits: npt.NDArray[np.floating[Any]]) -> float:
    if native is not None:
        return float(native.log_sum_exp(logits))
    scores = logits.astype(np.float64)
    peak = scores.max()
    return float(peak + np.log(np.exp(scores - peak).sum()))


def _most_probable(logits: npt.NDArray[np.floating[Any]], count: int) -> list[int]:
    """Return the ids of the greatest logits above minus infinity, best first, equal ones by lowest id."""
    if count == 0:
        return []
    if native is not None:
        return [int(i) for i in native.top_n(logits, count)[0]]
    ids = greatest(logits, count)
    return [int(i) for i in ids[np.argsort(-logits[ids], kind="stable")] if logits[i] > -np.inf]


def step_logprobs(
    logits: npt.NDArray[np.floating[Any]], token_ids: Sequence[int], state: SamplingState
) -> tuple[PositionLogprobs, ...] | None:
    """Return one entry for each emitted token, from its row of `logits` [k + 1, vocab], if asked for."""
    num_top = state.params.logprobs
    if num_top is None:
        return None
    real = logits[:, : state.num_real_tokens]
    return tuple(position_logprobs(row, token, num_top) for row, token in zip(real, token_ids, strict=False))
