"""From a drafter's own confidence to the chance that its token is accepted, learned online.

A drafter says how sure it is (a draft model's probability, the share of a suffix match). How often it is
right at that confidence depends on the route, the target and the position in the draft, so it is counted:
accepted of verified, by confidence bin and position, with slow forgetting. Few counts lean on more general
ones,

    position and bin  ->  bin of the route  ->  bin over all routes  ->  the confidence itself,

each level as so many pseudo-counts of the next. Beside the counts stands one fast number, a shift theta in
log-odds for the whole route, tracked by the Gaussian approximation of a logistic model (an extended Kalman
filter): it follows within some ten verified tokens when traffic changes, and its variance says how sure it
is. A run of surprises widens that variance at once, so that a collapse is believed quickly and a single miss
is not."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

EDGES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Borders of the confidence bins."""
UNKNOWN = len(EDGES) + 1
"""The bin of drafts that came without a confidence."""
NUM_BINS = UNKNOWN + 1
MIDDLES = np.array([0.03, 0.075, 0.15, 0.27, 0.43, 0.57, 0.73, 0.85, 0.925, 0.965, 0.985, 0.997, 0.6])
POSITION_GROUPS = (0, 1, 2, 3, 4, 4, 5)
"""Group of the positions 1, 2, ...; the last is that of all further ones."""
NUM_GROUPS = max(POSITION_GROUPS) + 1
FADE_TOKENS = 32
REFRESH_TOKENS = 48
MEMORY = 2000.0
"""Verified tokens after which a count weighs 1/e."""
STRENGTH_OF_CONFIDENCE = 6.0
STRENGTH_OF_POOL = 10.0
STRENGTH_OF_BIN = 20.0
THETA_PRIOR_VARIANCE = 0.25
THETA_DRIFT = 0.002
"""Variance that theta gains for each verified token."""
THETA_WIDE = 2.5
MOST_THETA = 8.0
RESTORED_TOKENS = 200.0
"""Verified tokens that a history from before a restart weighs like, at most."""
LEAST_SHIFT = 0.02
"""Changes of theta that are not worth a new table."""
SHIFT = 2.0
"""Log-odds by which acceptance has to have moved for it to count as another one."""
SURPRISE_LIMIT = 7.0
"""Of the cumulative sums of log-likelihood ratios (Page 1954), that shift against none: some eight misses in
a row of what was likely; in steady traffic hardly once in a thousand tokens."""
_MORE = math.exp(SHIFT)
LEAST_P, MOST_P = 0.005, 0.995


def bin_of(confidence: float) -> int:
    """Return the bin of a confidence."""
    return bisect_right(EDGES, confidence)


def group_of(position: int) -> int:
    """Return the group of a position in a draft, counted from 0."""
    return POSITION_GROUPS[position] if position < len(POSITION_GROUPS) else NUM_GROUPS - 1


class Counts:
    """Verified and accepted tokens by position group and bin, old ones fading."""

    def __init__(self) -> None:
        self._num_unfaded = 0
        # Lists: a step adds a few tokens, which takes longer in arrays.
        self._verified = [0.0] * (NUM_GROUPS * NUM_BINS)
        self._accepted = [0.0] * (NUM_GROUPS * NUM_BINS)
        self.total = 0.0
        """Verified tokens, faded ones in part."""
        self._total_accepted = 0.0

    def add(self, places: Sequence[int], outcomes: Sequence[bool]) -> None:
        """Count tokens, and let old counts weigh less, as so many new ones come.

        Args:
            places: position group x `NUM_BINS` + bin, of each token.
            outcomes: whether each was accepted.
        """
        self._fade(len(places))
        for place, outcome in zip(places, outcomes, strict=True):
            self._verified[place] += 1.0
            if outcome:
                self._accepted[place] += 1.0
        self.total += len(places)
        self._total_accepted += sum(outcomes)

    def _fade(self, num_tokens: int) -> None:
        self._num_unfaded += num_tokens
        if self._num_unfaded < FADE_TOKENS:
            return
        kept = math.exp(-self._num_unfaded / MEMORY)
        self._num_unfaded = 0
        self._verified = [count * kept for count in self._verified]
        self._accepted = [count * kept for count in self._accepted]
        self.total *= kept
        self._total_accepted *= kept

    def lists(self) -> tuple[list[float], list[float]]:
        """Return (verified, accepted), row by row."""
        return list(self._verified), list(self._accepted)

    def restore(self, verified: Sequence[float], accepted: Sequence[float]) -> None:
        """Take the counts of an earlier process over, at the weight of few tokens."""
        scale = min(1.0, RESTORED_TOKENS / max(sum(verified), 1e-9))
        self._verified = [count * scale for count in verified]
        self._accepted = [min(a, n) * scale for a, n in zip(accepted, verified, strict=True)]
        self.total, self._total_accepted = sum(self._verified), sum(self._accepted)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (verified, accepted), each [position groups, bins]."""
        shape = NUM_GROUPS, NUM_BINS
        return np.array(self._verified).reshape(shape), np.array(self._accepted).reshape(shape)

    @property
    def rate(self) -> float | None:
        """Accepted / verified, faded; none before the first."""
        return self._total_accepted / self.total if self.total > 0.5 else None


class AcceptanceLevel(NamedTuple):
    """Where acceptance stood at some time: enough to tell whether it has moved since."""

    num_breaks: int
    theta: float
    num_observed: int


class Calibration:
    """One route's acceptance with one drafter.

    Args:
        pool: counts of all routes with that drafter, which this one adds to and leans on.
    """

    def __init__(self, pool: Counts) -> None:
        self._pool = pool
        self.counts = Counts()
        self.theta = 0.0
        self.theta_variance = THETA_PRIOR_VARIANCE
        self._too_low = self._too_high = 0.0
        self.num_breaks = 0
        """Times that acceptance changed at a stroke."""
        self.num_observed = 0
        """Verified tokens, none faded."""
        self._since_refresh = 0
        self._theta_of_table = 0.0
        self._log_odds = np.zeros((NUM_GROUPS, NUM_BINS))
        self._table: list[list[float]] = []
        self._array = np.zeros((NUM_GROUPS, NUM_BINS))
        self.refresh()

    def restore(
        self, verified: Sequence[float], accepted: Sequence[float], theta: float, variance: float
    ) -> None:
        """Take over what an earlier process knew, no surer of it than of a route just met.

        Args:
            verified: counts by position group and bin, row by row.
            accepted: of these.
            theta: the shift then.
            variance: of it then.
        """
        self.counts.restore(verified, accepted)
        self.theta = theta
        self.theta_variance = min(THETA_WIDE, max(variance, THETA_PRIOR_VARIANCE))
        self.num_observed = int(self.counts.total)
        self.refresh()

    def refresh(self) -> None:
        """Compute the table of chances anew from all counts."""
        pool_n, pool_h = (counts.sum(0) for counts in self._pool.arrays())
        verified, accepted = self.counts.arrays()
        by_pool = (pool_h + STRENGTH_OF_CONFIDENCE * MIDDLES) / (pool_n + STRENGTH_OF_CONFIDENCE)
        n, h = verified.sum(0), accepted.sum(0)
        by_bin = (h + STRENGTH_OF_POOL * by_pool) / (n + STRENGTH_OF_POOL)
        by_position = (accepted + STRENGTH_OF_BIN * by_bin) / (verified + STRENGTH_OF_BIN)
        clipped = np.clip(by_position, LEAST_P, MOST_P)
        self._log_odds = np.log(clipped / (1 - clipped))
        self._since_refresh = 0
        self._shift()

    def _shift(self) -> None:
        self._theta_of_table = self.theta
        self._array = 1.0 / (1.0 + np.exp(-(self._log_odds + self.theta)))
        self._table = self._array.tolist()

    @property
    def level(self) -> AcceptanceLevel:
        """Where acceptance stands now."""
        return AcceptanceLevel(self.num_breaks, self.theta, self.num_observed)

    @property
    def is_promising(self) -> bool:
        """Whether the latest outcomes were better than expected, if not yet enough to call it a change."""
        return self._too_low > SURPRISE_LIMIT / 4

    @property
    def _surprise(self) -> float:
        """How much speaks for acceptance having moved, up or down, as a logarithm."""
        return max(self._too_low, self._too_high)

    @property
    def table(self) -> list[list[float]]:
        """Chance of acceptance [position group][bin], given that all drafts before were accepted."""
        return self._table

    @property
    def array(self) -> np.ndarray:
        """The same as an array; to be read, not changed."""
        return self._array

    def chance(self, position: int, confidence: float | None) -> float:
        """Return the chance of one draft, given those before it; `position` counts from 0."""
        return self._table[group_of(position)][UNKNOWN if confidence is None else bin_of(confidence)]

    def observe(self, positions: Sequence[int], bins: Sequence[int], outcomes: Sequence[bool]) -> None:
        """Learn from verified drafts: those that were accepted, and the first that was not, of each sequence.

        Args:
            positions: in the draft, from 0.
            bins: of the confidence.
            outcomes: whether accepted.
        """
        num = len(outcomes)
        if not num:
            return
        table = self._table
        groups = [group_of(position) for position in positions]
        chances = [table[g][b] for g, b in zip(groups, bins, strict=True)]
        places = [g * NUM_BINS + b for g, b in zip(groups, bins, strict=True)]
        self.counts.add(places, outcomes)
        self._pool.add(places, outcomes)
        self._track(chances, outcomes)
        self._since_refresh += num
        self.num_observed += num
        if self._since_refresh >= REFRESH_TOKENS:
            self.refresh()
        elif abs(self.theta - self._theta_of_table) > LEAST_SHIFT:
            self._shift()

    def _track(self, chances: Sequence[float], outcomes: Sequence[bool]) -> None:
        """Move theta, and widen what it may be where residuals keep one sign."""
        gradient = information = 0.0
        for p, outcome in zip(chances, outcomes, strict=True):
            variance = p * (1 - p)
            residual = outcome - p
            gradient += residual
            information += variance
            for_more = SHIFT * outcome - math.log(1 - p + p * _MORE)
            for_less = -SHIFT * outcome - math.log(1 - p + p / _MORE)
            self._too_low = max(0.0, self._too_low + for_more)
            self._too_high = max(0.0, self._too_high + for_less)
        if self._surprise > SURPRISE_LIMIT:
            self.theta_variance = max(self.theta_variance, THETA_WIDE)
            self._too_low = self._too_high = 0.0
            self.num_breaks += 1
        variance = self.theta_variance + THETA_DRIFT * len(outcomes)
        self.theta_variance = min(THETA_WIDE, variance / (1 + variance * information))
        # Counts take up what lasts, so the shift itself leans back to zero.
        self.theta = (self.theta + self.theta_variance * gradient) * (1 - len(outcomes) / MEMORY)
        self.theta = max(-MOST_THETA, min(MOST_THETA, self.theta))
