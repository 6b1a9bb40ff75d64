"""Ratios of what was measured in pairs, a moment apart, with 95 % intervals.

A machine that slows down slows both sides of a pair, so ratios hold what single speeds do not. Two ways: a
geometric mean of ratios, for few pairs that stray as those of other cells do; and a ratio of sums, for many
short ones, where a long pair is to count for more than a short one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_PAIRS = 4
"""Pairs from which a ratio of sums has an interval of its own: by fewer, Student's t says next to nothing."""
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)

Work = tuple[float, float]
"""(tokens, seconds) of one side of a pair."""
Pair = tuple[Work, Work]
"""What is compared, and what it is compared with."""


def student_t95(freedom: int) -> float:
    """Return Student's t for 95 % intervals, of so many degrees of freedom."""
    return _T95[freedom - 1] if freedom <= len(_T95) else 2.0


@dataclass(frozen=True, slots=True)
class Scatter:
    """How far single pairs stray: the deviation of logarithms of paired ratios from their own cell's mean,
    pooled over cells. A cell of one to three pairs says next to nothing of that; all of them together do, as
    the machine disturbs them alike."""

    deviation: float
    freedom: int
    """Degrees of freedom."""

    @property
    def t95(self) -> float:
        """Student's t for 95 % intervals."""
        return student_t95(self.freedom)

    @classmethod
    def of(cls, cells: Iterable[Sequence[Sequence[float]]]) -> Scatter | None:
        """Return the scatter of these cells; none where no cell has two pairs.

        Args:
            cells: of each, for each of its settings, ratios to the same plain runs. Settings of a cell share
                those runs, so together they count for no more degrees of freedom than one.
        """
        squares, freedom = 0.0, 0
        for settings in cells:
            logs = [np.log(np.array(ratios)) for ratios in settings if len(ratios) > 1]
            if logs:
                squares += float(np.mean([one.var(ddof=1) for one in logs])) * (len(logs[0]) - 1)
                freedom += len(logs[0]) - 1
        return cls(math.sqrt(squares / freedom), freedom) if freedom else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of speeds over pairs, with a 95 % interval by Student's t of its logarithm."""

    mean: float
    low: float | None
    """None for a single pair whose scatter is not known."""
    high: float | None

    @classmethod
    def of(cls, ratios: Sequence[float], scatter: Scatter | None = None) -> Ratio | None:
        """Return the geometric mean of these pairs' ratios; none without any.

        Args:
            ratios: of runs that belong together.
            scatter: of single ratios; without it that of these ratios.
        """
        if not ratios:
            return None
        scatter = scatter or Scatter.of([[ratios]])
        return cls._around(float(np.log(np.array(ratios)).mean()), len(ratios), scatter)

    @classmethod
    def of_sums(cls, pairs: Sequence[Pair], scatter: Scatter | None = None) -> Ratio | None:
        """Return the speed over all pairs of what is compared / of what it is compared with.

        A speed is the sum of tokens / the sum of seconds: where both sides have the same tokens, the ratio is
        that of total times. The interval is by the jackknife over pairs (Tukey 1958), each left out in turn,
        of the logarithm. Pairs over the same prompts, of several repeats, are taken for independent, which
        counts what prompts differ by as noise.

        Args:
            pairs: those without a token or a second on either side are left out.
            scatter: of single pairs' ratios, for fewer than `LEAST_PAIRS`; without it that of these.
        """
        found = np.array([pair for pair in pairs if np.all(np.array(pair) > 0)], dtype=np.float64)
        count = len(found)
        if not count:
            return None
        total = found.sum(axis=0)  # [side, tokens and seconds]
        log = float(_log_ratio(total))
        if count < LEAST_PAIRS:
            return cls._around(log, count, scatter or Scatter.of([[np.exp(_log_ratio(found)).tolist()]]))
        without = _log_ratio(total - found)
        error = math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))
        half = student_t95(count - 1) * error
        return cls(math.exp(log), math.exp(log - half), math.exp(log + half))

    @classmethod
    def _around(cls, log: float, count: int, scatter: Scatter | None) -> Ratio:
        if scatter is None:
            return cls(math.exp(log), None, None)
        half = scatter.t95 * scatter.deviation / math.sqrt(count)
        return cls(math.exp(log), math.exp(log - half), math.exp(log + half))


def _log_ratio(sums: np.ndarray) -> np.ndarray:
    """Return the logarithms of speed over speed of [..., side, (tokens, seconds)]."""
    speeds = np.log(sums[..., 0]) - np.log(sums[..., 1])
    found: np.ndarray = speeds[..., 0] - speeds[..., 1]
    return found


def single_ratios(pairs: Iterable[Pair]) -> list[float]:
    """Return each pair's own ratio of speeds; those without a token or a second on either side are left
    out."""
    return [
        (one[0] / one[1]) / (other[0] / other[1])
        for one, other in pairs
        if all(v > 0 for v in (*one, *other))
    ]


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of those that there are."""
    found = [value for value in values if value is not None]
    return float(np.exp(np.mean(np.log(found)))) if found else None
