"""How long a route's answers are, and how much of one is left, from those that ended lately."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

NUM_KEPT = 64
NUM_RESTORED = 16
LEAST_KNOWN = 3
"""Answers that must have ended before anything is concluded from them."""
ASSUMED_REMAINING = 96.0
"""Of a route without history."""


class OutputLengths:
    """Token counts of the latest answers of a route."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=NUM_KEPT)
        self._remaining: list[float] = []

    @property
    def is_known(self) -> bool:
        """Whether enough answers have ended to go by them."""
        return len(self._lengths) >= LEAST_KNOWN

    @property
    def mean(self) -> float | None:
        """Mean length; none before enough answers have ended."""
        return float(np.mean(self._lengths)) if self.is_known else None

    def add(self, length: int) -> None:
        """Take note of an answer that ended."""
        self._lengths.append(length)
        self._follow()

    @property
    def latest(self) -> list[int]:
        """The lengths, oldest first."""
        return list(self._lengths)

    def restore(self, lengths: Sequence[int]) -> None:
        """Begin with the last few lengths that an earlier process saw."""
        self._lengths.extend(lengths[-NUM_RESTORED:])
        self._follow()

    def _follow(self) -> None:
        if not self.is_known:
            return
        lengths = np.sort(np.array(self._lengths))
        longest = int(min(lengths[-1], 4096))
        at = np.arange(longest + 1)
        # Mean of what is left of those that are longer than n.
        first = np.searchsorted(lengths, at, side="right")
        tails = np.concatenate((np.cumsum(lengths[::-1])[::-1], [0]))
        count = len(lengths) - first
        with np.errstate(invalid="ignore", divide="ignore"):
            left = np.where(count > 0, tails[first] / np.maximum(count, 1) - at, 0.0)
        self._remaining = left.tolist()

    def remaining(self, num_output_tokens: int) -> float:
        """Return the expected tokens still to come of an answer that has so many."""
        if not self.is_known:
            return ASSUMED_REMAINING
        if num_output_tokens < len(self._remaining) and self._remaining[num_output_tokens] > 0:
            return self._remaining[num_output_tokens]
        # Longer than all before: of such answers about a quarter more has to be expected.
        return 4.0 + num_output_tokens / 4.0
