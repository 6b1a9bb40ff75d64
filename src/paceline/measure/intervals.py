"""95 % intervals of shares and means that are ratios of sums over prompts.

Tokens of one answer are alike, so the prompt is the unit: prompts are drawn with replacement two thousand
times, and the middle 95 % of the ratios is the interval (the percentile bootstrap, Efron 1979). Below three
prompts there is nothing to draw from; then a share has Wilson's interval (1927), which takes every token for
a draw of its own and is too narrow for it, and a mean has none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NUM_RESAMPLES = 2000
LEAST_PROMPTS = 3
BOOTSTRAP, WILSON = "bootstrap over prompts", "Wilson over tokens"


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % interval."""

    value: float
    low: float | None
    high: float | None
    method: str | None
    """How the interval was made; none where there is none."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"value": self.value, "low": self.low, "high": self.high, "method": self.method}


def ratio(above: Sequence[float], below: Sequence[float], *, is_share: bool = True) -> Interval | None:
    """Return sum(above) / sum(below) over prompts, with its interval; none where nothing is below.

    Args:
        above, below: one number for each prompt.
        is_share: whether the ratio is a share of tokens, from 0 to 1.
    """
    a, b = np.array(above, dtype=np.float64), np.array(below, dtype=np.float64)
    if not b.sum() > 0:
        return None
    value = float(a.sum() / b.sum())
    if len(a) < LEAST_PROMPTS:
        if not is_share:
            return Interval(value, None, None, None)
        return Interval(value, *wilson(value, float(b.sum())), WILSON)
    picks = np.random.default_rng(0).integers(0, len(a), size=(NUM_RESAMPLES, len(a)))
    sums = b[picks].sum(axis=1)
    ratios = a[picks].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Interval(value, float(low), float(high), BOOTSTRAP)


def wilson(share: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a share of `count` independent draws."""
    z = 1.96
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)
