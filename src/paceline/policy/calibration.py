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

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.policy.counts import (
    EDGES,
    FIRST_PLACES,
    LAST_PLACES,
    MEMORY,
    NUM_BINS,
    NUM_GROUPS,
    NUM_PLACES,
    UNKNOWN,
    Counts,
    bin_of,
    place_of,
)

MIDDLES = np.array([0.03, 0.075, 0.15, 0.27, 0.43, 0.57, 0.73, 0.85, 0.925, 0.965, 0.985, 0.997, 0.6])
REFRESH_TOKENS = 48
STRENGTH_OF_CONFIDENCE = 6.0
STRENGTH_OF_POOL = 10.0
STRENGTH_OF_BIN = 20.0
THETA_PRIOR_VARIANCE = 0.25
THETA_DRIFT = 0.002
"""Variance that theta gains for each verified token."""
THETA_WIDE = 2.5
MOST_THETA = 8.0
LEAST_SHIFT = 0.02
"""Changes of theta that are not worth a new table."""
SHIFT = 2.0
"""Log-odds by which acceptance has to have moved for it to count as another one."""
SURPRISE_LIMIT = 7.0
"""Of the cumulative sums of log-likelihood ratios (Page 1954), that shift against none: some eight misses in
a row of what was likely; in steady traffic hardly once in a thousand tokens."""
_MORE = math.exp(SHIFT)
LEAST_P, MOST_P = 0.005, 0.995
_NO_CHANCES: list[float | None] = [None] * NUM_PLACES
_BY_CONFIDENCE = STRENGTH_OF_CONFIDENCE * MIDDLES


def _over_positions(counts: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.add.reduce(counts, 0)
    return found


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
        # Made where somebody asks for them: most steps only learn, and read few places of the table.
        self._of_place: list[float] | None = None
        self._chances: list[float | None] = _NO_CHANCES
        self._array: np.ndarray | None = None
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
        pool_n, pool_h = (_over_positions(counts) for counts in self._pool.arrays())
        verified, accepted = self.counts.arrays()
        by_pool = (pool_h + _BY_CONFIDENCE) / (pool_n + STRENGTH_OF_CONFIDENCE)
        n, h = _over_positions(verified), _over_positions(accepted)
        by_bin = (h + STRENGTH_OF_POOL * by_pool) / (n + STRENGTH_OF_POOL)
        by_position = (accepted + STRENGTH_OF_BIN * by_bin) / (verified + STRENGTH_OF_BIN)
        clipped = np.minimum(np.maximum(by_position, LEAST_P), MOST_P)
        self._log_odds = np.log(clipped / (1 - clipped))
        self._since_refresh = 0
        self._of_place = None
        self._shift()

    def _shift(self) -> None:
        self._theta_of_table = self.theta
        self._chances = _NO_CHANCES.copy()
        self._array = None

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
    def array(self) -> np.ndarray:
        """Chance of acceptance [position group, bin], given that all drafts before were accepted; to be read,
        not changed."""
        if self._array is None:
            self._array = 1.0 / (1.0 + np.exp(-(self._log_odds + self._theta_of_table)))
        return self._array

    def chance_at(self, place: int) -> float:
        """Return one chance of the array, by position group x `NUM_BINS` + bin."""
        found = self._chances[place]
        if found is None:
            if self._of_place is None:
                self._of_place = self._log_odds.ravel().tolist()
            found = 1.0 / (1.0 + math.exp(-(self._of_place[place] + self._theta_of_table)))
            self._chances[place] = found
        return found

    def chances_of(self, confidences: Sequence[float]) -> list[float]:
        """Return the chance of each token of a draft, given those before it."""
        known, found = self._chances, []
        for first, confidence in zip(itertools.chain(FIRST_PLACES, LAST_PLACES), confidences, strict=False):
            place = first + bisect_right(EDGES, confidence)
            chance = known[place]
            found.append(self.chance_at(place) if chance is None else chance)
        return found

    def chance(self, position: int, confidence: float | None) -> float:
        """Return the chance of one draft, given those before it; `position` counts from 0."""
        found = UNKNOWN if confidence is None else bin_of(confidence)
        return self.chance_at(place_of(position, found))

    def observe(self, positions: Sequence[int], bins: Sequence[int], outcomes: Sequence[bool]) -> None:
        """Learn from verified drafts: those that were accepted, and the first that was not, of each sequence.

        Args:
            positions: in the draft, from 0.
            bins: of the confidence.
            outcomes: whether accepted.
        """
        places = [place_of(position, found) for position, found in zip(positions, bins, strict=True)]
        self.observe_places(places, outcomes)

    def observe_places(self, places: Sequence[int], outcomes: Sequence[bool]) -> None:
        """Do what `observe` does, of position group x `NUM_BINS` + bin of each token."""
        num = len(outcomes)
        if not num:
            return
        chances = [self.chance_at(place) for place in places]
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
        too_low, too_high, log = self._too_low, self._too_high, math.log
        for p, outcome in zip(chances, outcomes, strict=True):
            q = 1.0 - p
            information += p * q
            # What speaks for more, and for less, than was expected.
            too_low -= log(q + p * _MORE)
            too_high -= log(q + p / _MORE)
            if outcome:
                gradient += q
                too_low += SHIFT
                too_high -= SHIFT
            else:
                gradient -= p
            if too_low < 0.0:
                too_low = 0.0
            if too_high < 0.0:
                too_high = 0.0
        self._too_low, self._too_high = too_low, too_high
        if self._surprise > SURPRISE_LIMIT:
            self.theta_variance = max(self.theta_variance, THETA_WIDE)
            self._too_low = self._too_high = 0.0
            self.num_breaks += 1
        variance = self.theta_variance + THETA_DRIFT * len(outcomes)
        self.theta_variance = min(THETA_WIDE, variance / (1 + variance * information))
        # Counts take up what lasts, so the shift itself leans back to zero.
        self.theta = (self.theta + self.theta_variance * gradient) * (1 - len(outcomes) / MEMORY)
        self.theta = max(-MOST_THETA, min(MOST_THETA, self.theta))
