"""What drafting is worth under the rule that ends it: recent drafts, replayed at today's prices.

A draft ends early where its next token is not worth its cost, and tokens that are not worth a row are not
verified. So what a sequence gains, the rows it brings and the draft passes it joins all depend on prices, and
on how confidence is spread over drafts, not on its mean alone. The latest drafts of a route are kept as
confidence bins and replayed with the calibration and the prices of now."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.policy.calibration import NUM_GROUPS, POSITION_GROUPS, UNKNOWN, Calibration

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
PRIOR_CHANCE = 0.6
PRIOR_BINS = (11, 10, 8, 7, 6, 5, 4, 2)
"""Confidence bins of made-up drafts, one each, that stand in before any draft of any route was seen: as good
as they must be for everyone to be tried."""
_GROUPS = np.array([*POSITION_GROUPS, *[NUM_GROUPS - 1] * (MAX_LENGTH - len(POSITION_GROUPS))])
_GROUPS_BEHIND = _GROUPS[1:].tolist()


class Prices(NamedTuple):
    """What a moment of the machine is worth, in expected tokens of weight 1."""

    row: float
    """One more row of the target."""
    draft: float
    """One sequence's part of a draft pass."""


class Profile(NamedTuple):
    """Expected figures of one sequence's draft, by position [length]."""

    gain: np.ndarray
    """Tokens that are verified and accepted."""
    rows: np.ndarray
    """Rows of the target; at most 1 at each position."""
    active: np.ndarray
    """Draft passes that it takes part in; 0 where no draft model runs."""

    def value(self, prices: Prices) -> float:
        """Return what the whole draft is worth beyond its cost."""
        net = self.gain.sum() - prices.row * self.rows.sum() - prices.draft * self.active.sum()
        return float(net)


NOTHING = Profile(np.zeros(0), np.zeros(0), np.zeros(0))


class Borrowed:
    """The latest drafts of all routes from one source, for a route that has few of its own."""

    def __init__(self) -> None:
        self.drafts: deque[tuple[list[int], bool]] = deque(
            (([found] * MAX_LENGTH, False) for found in PRIOR_BINS), maxlen=NUM_BORROWED
        )
        """Bins, and whether more was not asked for."""


class _Draft(NamedTuple):
    bins: list[int]
    was_cut: bool
    is_first_after_break: bool


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
        self._bins = np.full((size, MAX_LENGTH), UNKNOWN, dtype=np.int64)
        self._lengths = np.zeros(size, dtype=np.int64)
        self._goes_on = np.zeros(size, dtype=np.bool_)
        self._weights = np.ones(size)
        self._num_breaks = 0
        self._num = 0
        self._pending: list[_Draft] = []
        """Kept, but not read yet: most steps only add, and many are read at once in less time."""
        self._next_sum = np.zeros(UNKNOWN + 1)
        self._next_count = np.zeros(UNKNOWN + 1)
        self._num_next = 0
        self._next: list[float] | None = None

    @property
    def num_kept(self) -> int:
        """Drafts that are there to be replayed."""
        return min(self._num, NUM_KEPT)

    def add(self, bins: list[int], *, was_cut: bool = False) -> None:
        """Keep a draft; an empty one is a look-up that found nothing.

        Args:
            bins: of its confidences.
            was_cut: whether it is as long as was asked for, so that a match may have gone on.
        """
        breaks = self.calibration.num_breaks
        self._pending.append(_Draft(bins, was_cut, breaks != self._num_breaks))
        self._num_breaks = breaks
        self._borrowed.drafts.append((bins, was_cut))
        self._num += 1
        if self._num % NEXT_DRAFTS == 0:
            self._next = None
        if len(self._pending) >= NUM_KEPT:
            self._settle()

    def latest(self) -> list[tuple[list[int], bool]]:
        """Return (bins, whether more was not asked for) of the drafts that still count, oldest first."""
        self._settle()
        rows = [NUM_BORROWED + index % NUM_KEPT for index in range(self._num - self.num_kept, self._num)]
        return [
            (self._bins[row, : self._lengths[row]].tolist(), bool(self._goes_on[row]))
            for row in rows
            if self._weights[row] > KEPT_AT_BREAK
        ]

    def restore(self, drafts: Sequence[tuple[list[int], bool]]) -> None:
        """Begin with the drafts of an earlier process, which give way to new ones."""
        for bins, was_cut in drafts:
            self._pending.append(_Draft(bins, was_cut, False))
            self._num += 1
        self._settle()
        self._weights[NUM_BORROWED:] = RESTORED_WEIGHT
        self._next = None

    def _settle(self) -> None:
        """Read the drafts that were added since the last time."""
        if not self._pending:
            return
        first = self._num - len(self._pending)
        for index, draft in enumerate(self._pending, first):
            if draft.is_first_after_break:
                # Drafts from before the traffic changed say little of those to come.
                self._weights *= KEPT_AT_BREAK
            row = NUM_BORROWED + index % NUM_KEPT
            self._weights[row] = 1.0
            self._put(row, draft.bins, draft.was_cut)
        before = [found for draft in self._pending for found in draft.bins[:MAX_LENGTH][:-1]]
        if before:
            behind = [found for draft in self._pending for found in draft.bins[1:MAX_LENGTH]]
            groups = [
                group for draft in self._pending for group in _GROUPS_BEHIND[: max(0, len(draft.bins) - 1)]
            ]
            chances = self.calibration.array[groups, behind]
            self._next_sum += np.bincount(before, chances, minlength=UNKNOWN + 1)
            self._next_count += np.bincount(before, minlength=UNKNOWN + 1)
            self._num_next += len(before)
            if self._num_next > 4000:
                self._num_next //= 2
                self._next_sum *= 0.5
                self._next_count *= 0.5
        self._pending.clear()

    def next_chances(self) -> list[float]:
        """Return the expected chance of the token behind one of each bin."""
        if self._next is None:
            self._settle()
            sums, counts = self._next_sum, self._next_count
            mean = (sums.sum() + 4 * PRIOR_CHANCE) / (counts.sum() + 4)
            prior = 0.5 * self.calibration.array[1] + 0.5 * mean
            self._next = ((sums + 8 * prior) / (counts + 8)).tolist()
        return self._next

    def _put(self, row: int, bins: Sequence[int], was_cut: bool) -> None:
        length = min(len(bins), MAX_LENGTH)
        self._lengths[row] = length
        # What a draft model would have drawn next there always is; a match may be at its end.
        self._goes_on[row] = length > 0 and (was_cut or self.has_passes)
        if length:
            self._bins[row, :length] = bins[:length]

    def weights(self) -> np.ndarray:
        """Return what each draft counts [drafts], borrowed ones first; together 1."""
        self._settle()
        weights = self._weights[: NUM_BORROWED + self.num_kept].copy()
        weights[:NUM_BORROWED] *= 1 - self.num_kept / NUM_KEPT
        weights /= weights.sum()
        return weights

    def _read(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Return bins [drafts, length] and lengths [drafts], borrowed ones first."""
        self._settle()
        if self.num_kept < NUM_KEPT:
            for row, (draft, was_cut) in enumerate(self._borrowed.drafts):
                self._put(row, draft, was_cut)
        end = NUM_BORROWED + self.num_kept
        return self._bins[:end, :length], self._lengths[:end]

    def chances(self, length: int) -> np.ndarray:
        """Return the chances of all drafts [drafts, length]; beyond a draft's end, those of its like."""
        bins, lengths = self._read(length)
        chances: np.ndarray = self.calibration.array[_GROUPS[:length][None, :], bins]
        outside = np.arange(length)[None, :] >= lengths[:, None]
        if outside.any():
            # Nobody asked for these; what would have come is told by the last token that was drawn.
            last = bins[np.arange(len(bins)), np.minimum(np.maximum(lengths, 1), length) - 1]
            goes_on = self._goes_on[: len(bins)]
            filled = np.where(goes_on, np.array(self.next_chances())[last], 0.0)
            chances = np.where(outside, filled[:, None], chances)
        return chances

    def profile(self, length: int, weight: float, prices: Prices) -> Profile:
        """Return what a draft of at most `length` tokens comes to under these prices."""
        if length < 1:
            return NOTHING
        weights = self.weights()
        return Profile(*(weights @ part for part in self.each(length, weight, prices)))

    def each(self, length: int, weight: float, prices: Prices) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return gain, rows and active of each kept draft, all [drafts, length]."""
        chances = self.chances(length)
        survival = np.cumprod(chances, axis=1)
        is_kept = weight * survival >= prices.row
        if not self.has_passes:
            rows = is_kept & (survival > 0)
            return weight * survival * rows, rows.astype(np.float64), np.zeros_like(survival)
        # The token behind each, as the rule expects it before it is drawn.
        ahead = np.full_like(survival, 0.0)
        ahead[:, 1:] = survival[:, :-1] * self._ahead(length)[:, :-1]
        goes_on = weight * ahead - prices.row > prices.draft
        goes_on[:, 0] = True
        active = np.logical_and.accumulate(goes_on, axis=1)
        rows = active & is_kept
        return weight * survival * rows, rows.astype(np.float64), active.astype(np.float64)

    def _ahead(self, length: int) -> np.ndarray:
        ahead: np.ndarray = np.array(self.next_chances())[self._bins[: NUM_BORROWED + self.num_kept, :length]]
        return ahead


def mixed(suffix: Replay, model: Profile, length: int, weight: float, prices: Prices) -> Profile:
    """Return what comes of taking a match where it is worth more than the draft model, and asking that
    elsewhere."""
    gain, rows, _ = suffix.each(length, weight, prices)
    worth = gain.sum(1) - prices.row * rows.sum(1)
    is_taken = worth > max(0.0, model.value(prices))
    weights = suffix.weights() * is_taken
    share = float(weights.sum())
    return Profile(
        weights @ gain + (1 - share) * model.gain,
        weights @ rows + (1 - share) * model.rows,
        (1 - share) * model.active,
    )
