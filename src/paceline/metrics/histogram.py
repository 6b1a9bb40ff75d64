"""A histogram that costs a binary search to feed; publishing it is somebody else's work."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Self


class Histogram:
    """Counts by upper bound, as Prometheus has them.

    Args:
        bounds: upper bounds, included, ascending; beyond the last there is infinity.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or several that are equal."""
        self._counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, values up to it), the last one "+Inf"."""
        names = [f"{bound:g}" if bound != int(bound) else f"{bound:.1f}" for bound in self.bounds]
        return list(zip([*names, "+Inf"], map(float, accumulate(self._counts)), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"bounds": list(self.bounds), "counts": list(self._counts), "sum": self.sum}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the histogram of plain values.

        Raises:
            KeyError, TypeError, ValueError: they are none.
        """
        found = cls(value["bounds"])
        counts = [int(count) for count in value["counts"]]
        if len(counts) != len(found._counts):
            raise ValueError(f"{len(counts)} counts for {len(found.bounds)} bounds")
        found._counts, found.sum = counts, float(value["sum"])
        return found
