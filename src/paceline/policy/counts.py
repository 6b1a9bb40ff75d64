"""Bins of a drafter's confidence, groups of positions, and accepted of verified tokens by both."""

from __future__ import annotations

import itertools
import math
import operator
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

EDGES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995)
"""Borders of the confidence bins."""
UNKNOWN = len(EDGES) + 1
"""The bin of drafts that came without a confidence."""
NUM_BINS = UNKNOWN + 1
POSITION_GROUPS = (0, 1, 2, 3, 4, 4, 5)
"""Group of the positions 1, 2, ...; the last is that of all further ones."""
NUM_GROUPS = max(POSITION_GROUPS) + 1
NUM_PLACES = NUM_GROUPS * NUM_BINS
VERIFIED, ACCEPTED = range(2)
MOST_NOTED = 64
MEMORY = 2000.0
"""Verified tokens after which a count weighs 1/e."""
RESTORED_TOKENS = 200.0
"""Verified tokens that a history from before a restart weighs like, at most."""


def bin_of(confidence: float) -> int:
    """Return the bin of a confidence."""
    return bisect_right(EDGES, confidence)


def bins_of(confidences: Sequence[float]) -> list[int]:
    """Return the bin of each confidence."""
    return [bisect_right(EDGES, confidence) for confidence in confidences]


def places_of(bins: Sequence[int]) -> list[int]:
    """Return position group x `NUM_BINS` + bin of each token of a draft."""
    return list(map(operator.add, itertools.chain(FIRST_PLACES, LAST_PLACES), bins))


def place_of(position: int, found: int) -> int:
    """Return position group x `NUM_BINS` + bin of a draft at a position, counted from 0."""
    return (FIRST_PLACES[position] if position < _NUM_FIRST else _LAST_PLACE) + found


FIRST_PLACES = tuple(group * NUM_BINS for group in POSITION_GROUPS)
"""Place of bin 0 at the positions 0, 1, ...; at all further ones `LAST_PLACES` goes on."""
_NUM_FIRST, _LAST_PLACE = len(FIRST_PLACES), (NUM_GROUPS - 1) * NUM_BINS
LAST_PLACES = itertools.repeat(_LAST_PLACE)


class Counts:
    """Verified and accepted tokens by position group and bin, old ones fading.

    Tokens are only noted as they come, and counted many at once where somebody asks."""

    def __init__(self) -> None:
        self._both = np.zeros((2, NUM_PLACES))
        self._places: list[int] = []
        self._outcomes: list[bool] = []
        self.total = 0.0
        """Verified tokens, faded ones in part."""
        self._total_accepted = 0.0

    def add(self, places: Sequence[int], outcomes: Sequence[bool]) -> None:
        """Count tokens, and let old counts weigh less, as so many new ones come.

        Args:
            places: position group x `NUM_BINS` + bin, of each token.
            outcomes: whether each was accepted.
        """
        self._places += places
        self._outcomes += outcomes
        self.total += len(places)
        self._total_accepted += sum(outcomes)
        if len(self._places) >= MOST_NOTED:
            self._count()

    def _count(self) -> None:
        num, num_accepted = len(self._places), sum(self._outcomes)
        kept = math.exp(-num / MEMORY)
        places, both = np.array(self._places), self._both
        both *= kept
        both[VERIFIED] += np.bincount(places, minlength=NUM_PLACES)
        both[ACCEPTED] += np.bincount(places, self._outcomes, NUM_PLACES)
        self.total = (self.total - num) * kept + num
        self._total_accepted = (self._total_accepted - num_accepted) * kept + num_accepted
        self._places.clear()
        self._outcomes.clear()

    def arrays(self) -> np.ndarray:
        """Return (verified, accepted), each [position groups, bins]; to be read, not changed."""
        if self._places:
            self._count()
        return self._both.reshape(2, NUM_GROUPS, NUM_BINS)

    def lists(self) -> tuple[list[float], list[float]]:
        """Return (verified, accepted), row by row."""
        verified, accepted = self.arrays()
        return verified.ravel().tolist(), accepted.ravel().tolist()

    def restore(self, verified: Sequence[float], accepted: Sequence[float]) -> None:
        """Take the counts of an earlier process over, at the weight of few tokens."""
        scale = min(1.0, RESTORED_TOKENS / max(sum(verified), 1e-9))
        self._both = scale * np.array((verified, accepted))
        self._both[ACCEPTED] = np.minimum(self._both[ACCEPTED], self._both[VERIFIED])
        self.total, self._total_accepted = self._both.sum(axis=1).tolist()

    @property
    def rate(self) -> float | None:
        """Accepted / verified, faded; none before the first."""
        return self._total_accepted / self.total if self.total > 0.5 else None
