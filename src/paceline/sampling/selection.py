"""Exact choice of the greatest few of many values without sorting them all.

Each function keeps a beginning of one order, greatest value first and equal values by lowest index: what a
full stable sort would keep. Only values are sorted, never indices: the cut-off value and the number to keep
say the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

_CANDIDATE_SHARES = (-5.5, -9.0, -14.0, -np.inf)
"""Logarithms: tokens each below this share of what top-p may leave out are looked at only where the others do
not reach top-p. Usually the first bound does, and a few hundred values are sorted."""


def greatest(values: npt.NDArray[np.floating[Any]], count: int) -> Indices:
    """Return the indices, ascending, of the `count` greatest values, equal ones by lowest index.

    Args:
        values: [n], no NaN.
        count: at least 1; n or more keeps all.
    """
    size = len(values)
    if count >= size:
        return np.arange(size)
    cutoff = np.partition(values, size - count)[size - count]
    return _beginning(values, cutoff, count)


def nucleus(scores: npt.NDArray[np.float64], top_p: float) -> Indices:
    """Return the indices, ascending, of the smallest set of most probable tokens that reaches `top_p`.

    In the order above, tokens are kept one by one until the sum of their exp(score), added up in that order,
    is at least `top_p` times the sum over all; the token that crosses is kept (Holtzman et al., "The curious
    case of neural text degeneration", 2020). Where rounding keeps the sum below the goal to the end, all are
    kept.

    Args:
        scores: float64 [n], log-probabilities up to a constant, the greatest of them 0; minus infinity is
            fine.
        top_p: in (0, 1).
    """
    total = np.exp(scores).sum()
    log_rest = np.log(total * (1.0 - top_p))
    for log_share in _CANDIDATE_SHARES:
        candidates = np.flatnonzero(scores >= log_rest + log_share)
        subset = scores[candidates]
        descending = np.sort(subset)[::-1]
        last = int(np.searchsorted(np.cumsum(np.exp(descending)), top_p * total))
        if last < len(descending):
            return candidates[_beginning(subset, descending[last], last + 1)]
    return np.arange(len(scores))


def _beginning(values: npt.NDArray[np.floating[Any]], cutoff: Any, count: int) -> Indices:
    """Return the first `count` in order, where `cutoff` is the value of the last one kept."""
    keep = values > cutoff
    ties = np.flatnonzero(values == cutoff)
    keep[ties[: count - int(np.count_nonzero(keep))]] = True
    return np.flatnonzero(keep)
