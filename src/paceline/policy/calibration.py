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
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.policy.counts import (
    ACCEPTED,
    MEMORY,
    NUM_BINS,
    NUM_GROUPS,
    UNKNOWN,
    VERIFIED,
    Counts,
    bin_of,
    bins_of,
    place_of,
    places_of,
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
MORE = math.exp(SHIFT)
SURPRISE_LIMIT = math.exp(7.0)
"""Of the cumulative products of likelihood ratios, that shift against none (Page 1954, who adds up their
logarithms): some eight misses in a row of what was likely; in steady traffic hardly once in a thousand
tokens."""
PROMISING_LIMIT = math.exp(7.0 / 4)
"""Of the same, from which on things seem to get better."""
LEAST_P, MOST_P = 0.005, 0.995
_BY_CONFIDENCE = STRENGTH_OF_CONFIDENCE * MIDDLES


def _over_positions(counts: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.add.reduce(counts, 1)
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
        self._too_low = self._too_high = 1.0
        self.num_breaks = 0
        """Times that acceptance changed at a stroke."""
        self.num_observed = 0
        """Verified tokens, none faded."""
        self._since_refresh = 0
        self._theta_of_table = 0.0
        self._odds: list[float]
        """Accepted / rejected, by position group x `NUM_BINS` + bin, but for theta."""
        self._shift_of_odds: float
        """Factor that stands for theta."""
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
        pool_n, pool_h = _over_positions(self._pool.arrays())
        both = self.counts.arrays()
        n, h = _over_positions(both)
        by_pool = (pool_h + _BY_CONFIDENCE) / (pool_n + STRENGTH_OF_CONFIDENCE)
        by_bin = (h + STRENGTH_OF_POOL * by_pool) / (n + STRENGTH_OF_POOL)
        by_position = (both[ACCEPTED] + STRENGTH_OF_BIN * by_bin) / (both[VERIFIED] + STRENGTH_OF_BIN)
        clipped = np.minimum(np.maximum(by_position, LEAST_P), MOST_P)
        self._odds = (clipped / (1 - clipped)).ravel().tolist()
        self._since_refresh = 0
        self._shift()

    def _shift(self) -> None:
        self._theta_of_table = self.theta
        self._shift_of_odds = math.exp(self.theta)
        self._array = None

    @property
    def level(self) -> AcceptanceLevel:
        """Where acceptance stands now."""
        return AcceptanceLevel(self.num_breaks, self.theta, self.num_observed)

    @property
    def is_promising(self) -> bool:
        """Whether the latest outcomes were better than expected, if not yet enough to call it a change."""
        return self._too_low > PROMISING_LIMIT

    @property
    def array(self) -> np.ndarray:
        """Chance of acceptance [position group, bin], given that all drafts before were accepted; to be read,
        not changed."""
        if self._array is None:
            odds = np.array(self._odds).reshape(NUM_GROUPS, NUM_BINS) * self._shift_of_odds
            self._array = odds / (1.0 + odds)
        return self._array

    def chance_at(self, place: int) -> float:
        """Return one chance of the array, by position group x `NUM_BINS` + bin."""
        odds = self._odds[place] * self._shift_of_odds
        return odds / (1.0 + odds)

    def chances_of(self, confidences: Sequence[float]) -> list[float]:
        """Return the chance of each token of a draft, given those before it."""
        odds, shift = self._odds, self._shift_of_odds
        return [
            (shifted := odds[place] * shift) / (1.0 + shifted) for place in places_of(bins_of(confidences))
        ]

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
        self._track(places, outcomes)
        self.counts.add(places, outcomes)
        self._pool.add(places, outcomes)
        self._since_refresh += num
        self.num_observed += num
        if self._since_refresh >= REFRESH_TOKENS:
            self.refresh()
        elif abs(self.theta - self._theta_of_table) > LEAST_SHIFT:
            self._shift()

    def _track(self, places: Sequence[int], outcomes: Sequence[bool]) -> None:
        """Move theta, and widen what it may be where residuals keep one sign."""
        gradient = information = 0.0
        too_low, too_high = self._too_low, self._too_high
        odds, shift = self._odds, self._shift_of_odds
        for place, outcome in zip(places, outcomes, strict=True):
            expected = odds[place] * shift
            total = 1.0 + expected
            information += expected / (total * total)
            # What speaks for more, and for less, than was expected.
            if outcome:
                gradient += 1.0 / total
                too_low *= MORE * total / (1.0 + MORE * expected)
                too_high *= total / (MORE + expected)
            else:
                gradient -= expected / total
                too_low *= total / (1.0 + MORE * expected)
                too_high *= MORE * total / (MORE + expected)
            if too_low < 1.0:
                too_low = 1.0
            if too_high < 1.0:
                too_high = 1.0
        self._too_low, self._too_high = too_low, too_high
        if max(too_low, too_high) > SURPRISE_LIMIT:
            self.theta_variance = max(self.theta_variance, THETA_WIDE)
            self._too_low = self._too_high = 1.0
            self.num_breaks += 1
        variance = self.theta_variance + THETA_DRIFT * len(outcomes)
        self.theta_variance = min(THETA_WIDE, variance / (1 + variance * information))
        # Counts take up what lasts, so the shift itself leans back to zero.
        self.theta = (self.theta + self.theta_variance * gradient) * (1 - len(outcomes) / MEMORY)
        self.theta = max(-MOST_THETA, min(MOST_THETA, self.theta))
