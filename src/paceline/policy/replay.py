"""What drafting is worth under the rule that ends it: recent drafts, replayed at today's prices.

A draft ends early where its next token is not worth its cost, and tokens that are not worth a row are not
verified. So what a sequence gains, the rows it brings and the draft passes it joins all depend on prices, and
on how confidence is spread over drafts, not on its mean alone. The latest drafts of a route are kept as
confidence bins and replayed with the calibration and the prices of now."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.policy.calibration import Calibration
from paceline.policy.counts import NUM_BINS, NUM_GROUPS, NUM_PLACES, POSITION_GROUPS, places_of
from paceline.policy.profile import NOTHING, Prices, Profile

NUM_KEPT = 64
NUM_BORROWED = 8
"""Drafts that count beside a route's own while these are few; their weight goes as the own ones come."""
KEPT_AT_BREAK = 0.05
"""What drafts still count once acceptance has changed at a stroke."""
RESTORED_WEIGHT = 0.25
"""What a draft from before a restart counts."""
MAX_LENGTH = 64
NEXT_DRAFTS = 8
"""Drafts after which it is computed anew what follows a token of each bin."""
LEAST_WORTH = 1e-300
"""Where rows cost nothing, all get one that are not sure to fall."""
MOST_NEXT = 4000
"""Tokens whose followers are counted before all counts are halved."""
PRIOR_CHANCE = 0.6
PRIOR_BINS = (11, 10, 8, 7, 6, 5, 4, 2)
"""Confidence bins of made-up drafts, one each, that stand in before any draft of any route was seen: as good
as they must be for everyone to be tried."""
_BEHIND = NUM_BINS
"""Codes from here on stand for what comes behind a draft that was cut: its last bin, and this."""
_ENDED = 2 * NUM_BINS
"""The code of what comes behind a draft that ended by itself: nothing."""
_NUM_CODES = _ENDED + 1
_GROUPS = np.array([*POSITION_GROUPS, *[NUM_GROUPS - 1] * (MAX_LENGTH - len(POSITION_GROUPS))])
_FIRST_CODES = (_GROUPS * _NUM_CODES)[:, None]


class Draft(NamedTuple):
    """What is kept of a draft; an empty one is a look-up that found nothing."""

    bins: list[int]
    """Of its confidences; not to be changed."""
    was_cut: bool = False
    """Whether it is as long as was asked for, so that a match may have gone on."""


FOUND_NOTHING = Draft([])


class Borrowed:
    """The latest drafts of all routes from one source, for a route that has few of its own."""

    def __init__(self) -> None:
        self.drafts: deque[Draft] = deque(
            (Draft([found] * MAX_LENGTH) for found in PRIOR_BINS), maxlen=NUM_BORROWED
        )
        self.num_seen = 0


class _Replayed(NamedTuple):
    """What was computed last, with all that it depends on."""

    asked: tuple[int, float, Prices, int, int]
    array: np.ndarray
    following: list[float]
    found: tuple[np.ndarray, np.ndarray, np.ndarray]


class Replay:
    """The latest drafts of one route from one source.

    Args:
        calibration: turns bins into chances.
        borrowed: drafts of all routes from that source, which this one adds to.
        has_passes: whether each token takes a pass of a draft model; a look-up takes none.
    """

    def __init__(self, calibration: Calibration, borrowed: Borrowed, *, has_passes: bool) -> None:
        self.calibration = calibration
        self.has_passes = has_passes
        self._borrowed = borrowed
        size = NUM_KEPT + NUM_BORROWED
        self._drafts = [FOUND_NOTHING] * size
        """Borrowed ones first, the others in a ring."""
        self._new: list[Draft] = []
        """The latest drafts, which are not in the ring yet: most steps only add."""
        self._num_borrowed = -1
        """Drafts that all routes had seen when the borrowed ones were taken over."""
        self._codes = np.empty((0, size), dtype=np.int64)
        """The same [positions, drafts], each at the codes of its position group, as long as anybody asked
        for."""
        self._changed: set[int] = set()
        """Places of drafts that are not read in yet."""
        self._weights = np.ones(size)
        self._num_breaks = 0
        self._num = 0
        self._num_next = array("d", bytes(8 * NUM_BINS * NUM_PLACES))
        """Times that a token at a place came behind one of a bin, row by row [bins, places]."""
        self._since_halved = 0
        self._next: list[float] | None = None
        self._last: _Replayed | None = None

    @property
    def num_kept(self) -> int:
        """Drafts that are there to be replayed."""
        return min(self._num, NUM_KEPT)

    def add(self, *drafts: Draft) -> None:
        """Keep drafts, the latest last."""
        if self.calibration.num_breaks != self._num_breaks:
            self._take_in()
            self._num_breaks = self.calibration.num_breaks
            # Drafts from before the traffic changed say little of those to come.
            self._weights *= KEPT_AT_BREAK
        borrowed, num = self._borrowed, self._num + len(drafts)
        borrowed.drafts.extend(drafts)
        borrowed.num_seen += len(drafts)
        if num // NEXT_DRAFTS != self._num // NEXT_DRAFTS:
            self._next = None
        self._num = num
        self._new += drafts
        if len(self._new) >= NUM_KEPT:
            self._take_in()

    def _take_in(self) -> None:
        """Put the latest drafts into the ring, and count what follows what."""
        if not self._new:
            return
        begin = self._num - len(self._new)
        places = [NUM_BORROWED + index % NUM_KEPT for index in range(begin, self._num)]
        for place, draft in zip(places, self._new, strict=True):
            self._put(place, draft)
        self._weights[places] = 1.0
        self._new.clear()

    def _put(self, place: int, draft: Draft) -> None:
        self._drafts[place] = draft
        self._changed.add(place)
        if len(draft.bins) > 1:
            self._count_next(draft.bins)

    def _code_behind(self, draft: Draft) -> int:
        """Return the code of what comes behind a draft's last token."""
        # What a draft model would have drawn next there always is; a match may be at its end.
        goes_on = draft.bins and (draft.was_cut or self.has_passes)
        return _BEHIND + draft.bins[-1] if goes_on else _ENDED

    def _count_next(self, bins: Sequence[int]) -> None:
        """Take note of what followed each token of a draft."""
        counts = self._num_next
        for found, place in zip(bins, places_of(bins)[1:], strict=False):
            counts[found * NUM_PLACES + place] += 1.0
        self._since_halved += len(bins) - 1
        if self._since_halved > MOST_NEXT:
            self._since_halved //= 2
            halved = np.frombuffer(counts)
            halved *= 0.5

    def next_chances(self) -> list[float]:
        """Return the expected chance of the token behind one of each bin, by the calibration of now."""
        if self._next is None:
            self._take_in()
            by_place = self.calibration.array
            counts = np.frombuffer(self._num_next).reshape(NUM_BINS, NUM_PLACES)
            sums, nums = counts @ by_place.ravel(), np.add.reduce(counts, 1)
            mean = (np.add.reduce(sums) + 4 * PRIOR_CHANCE) / (np.add.reduce(nums) + 4)
            prior = 0.5 * by_place[1] + 0.5 * mean
            self._next = ((sums + 8 * prior) / (nums + 8)).tolist()
        return self._next

    def latest(self) -> list[Draft]:
        """Return (bins, whether it goes on behind them) of the drafts that still count, oldest first."""
        self._take_in()
        places = [NUM_BORROWED + index % NUM_KEPT for index in range(self._num - self.num_kept, self._num)]
        found = [self._drafts[place] for place in places if self._weights[place] > KEPT_AT_BREAK]
        return [Draft(one.bins[:MAX_LENGTH], self._code_behind(one) != _ENDED) for one in found]

    def restore(self, drafts: Sequence[Draft]) -> None:
        """Begin with the drafts of an earlier process, which give way to new ones."""
        self._take_in()
        for draft in drafts:
            self._put(NUM_BORROWED + self._num % NUM_KEPT, draft)
            self._num += 1
        self._weights[NUM_BORROWED:] = RESTORED_WEIGHT
        self._next = None

    def weights(self) -> np.ndarray:
        """Return what each draft counts [drafts], borrowed ones first; together 1."""
        self._take_in()
        weights = self._weights[: NUM_BORROWED + self.num_kept].copy()
        weights[:NUM_BORROWED] *= 1 - self.num_kept / NUM_KEPT
        weights /= np.add.reduce(weights)
        return weights

    def _read(self, length: int) -> np.ndarray:
        """Return codes [length, drafts], borrowed drafts first."""
        self._take_in()
        borrowed = self._borrowed
        if self.num_kept < NUM_KEPT and self._num_borrowed != borrowed.num_seen:
            self._num_borrowed = borrowed.num_seen
            self._drafts[: len(borrowed.drafts)] = borrowed.drafts
            self._changed.update(range(len(borrowed.drafts)))
        if length > len(self._codes):
            self._codes = np.empty((length, len(self._drafts)), dtype=np.int64)
            self._changed.update(range(len(self._drafts)))
        if self._changed:
            places, size = list(self._changed), len(self._codes)
            drafts = [self._drafts[place] for place in places]
            rows = [one.bins[:size] + [self._code_behind(one)] * (size - len(one.bins)) for one in drafts]
            self._codes[:, places] = np.array(rows).T + _FIRST_CODES[:size]
            self._changed.clear()
        return self._codes[:length, : NUM_BORROWED + self.num_kept]

    def chances(self, length: int) -> np.ndarray:
        """Return the chances of all drafts [length, drafts]; beyond a draft's end, those of its like."""
        table = np.zeros((NUM_GROUPS, _NUM_CODES))
        table[:, :_BEHIND] = self.calibration.array
        # Nobody asked for these; what would have come is told by the last token that was drawn.
        table[:, _BEHIND:_ENDED] = self.next_chances()
        found: np.ndarray = table.ravel()[self._read(length)]
        return found

    def profile(self, length: int, weight: float, prices: Prices) -> Profile:
        """Return what a draft of at most `length` tokens comes to under these prices."""
        if length < 1:
            return NOTHING
        gain, rows, active = self.each(length, weight, prices)
        weights = self.weights()
        return Profile(gain @ weights, rows @ weights, active @ weights)

    def each(self, length: int, weight: float, prices: Prices) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return gain, rows and active of each kept draft, all [length, drafts]; to be read, not changed."""
        # A mix of two sources asks for what one of them was asked for just before.
        asked = (length, weight, prices, self._num, self._borrowed.num_seen)
        array, following = self.calibration.array, self.next_chances()
        last = self._last
        if last is not None and last.asked == asked and last.array is array and last.following is following:
            return last.found
        found = self._each(length, weight, prices)
        self._last = _Replayed(asked, array, following, found)
        return found

    def _each(self, length: int, weight: float, prices: Prices) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        worth = np.multiply.accumulate(self.chances(length), 0)
        if weight != 1.0:
            worth *= weight
        rows = worth >= max(prices.row, LEAST_WORTH)
        if not self.has_passes:
            return worth * rows, rows.astype(np.float64), np.zeros(worth.shape)
        # The token behind each, as the rule expects it before it is drawn.
        goes_on = np.ones(worth.shape, dtype=np.bool_)
        np.greater(worth[:-1] * self._ahead(length - 1), prices.draft + prices.row, out=goes_on[1:])
        active = np.logical_and.accumulate(goes_on, 0)
        rows &= active
        return worth * rows, rows.astype(np.float64), active.astype(np.float64)

    def _ahead(self, length: int) -> np.ndarray:
        """Return the expected chance of the token behind each [length, drafts]."""
        following = self.next_chances()
        table = np.empty((NUM_GROUPS, _NUM_CODES))
        table[:] = [*following, *following, 0.0]
        ahead: np.ndarray = table.ravel()[self._read(length)]
        return ahead


def mixed(suffix: Replay, model: Profile, length: int, weight: float, prices: Prices) -> Profile:
    """Return what comes of taking a match where it is worth more than the draft model, and asking that
    elsewhere."""
    gain, rows, _ = suffix.each(length, weight, prices)
    worth = gain.sum(0) - prices.row * rows.sum(0)
    is_taken = worth > max(0.0, model.value(prices))
    weights = suffix.weights() * is_taken
    share = float(weights.sum())
    return Profile(
        gain @ weights + (1 - share) * model.gain,
        rows @ weights + (1 - share) * model.rows,
        (1 - share) * model.active,
    )
