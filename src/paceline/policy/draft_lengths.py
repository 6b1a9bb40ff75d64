"""How many drafts each sequence should have in one step, all sequences together.

A *slot* is one more draft for one sequence. Its gain is the chance that it is verified and accepted
(survival), its cost a row of the target and a part of a draft pass. Slots are put in order of survival, and
goodput

    (weighted expected tokens) / (seconds of target, draft passes and catching up)

is evaluated at every prefix of that order, with the draft depth that the prefix needs, no drafts at all among
them. Step costs have bumps, so the search does not stop where goodput first falls. For equal prices the order
is optimal: of two slots with the same cost, the one with more survival comes first, and a sequence's own
slots are in order since survival only falls.

The best goodput is also the price of a second (Dinkelbach 1967): whatever brings more than price x seconds is
worth doing. That price settles, in the same units, everything that is decided apart from the search."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from paceline.policy.profile import Profile


class Candidate(NamedTuple):
    """One sequence that may draft."""

    profile: Profile
    """Its expected draft, already cut at the most that is of use."""
    start_s: float = 0.0
    """Seconds before it can draft at all, spread over the steps that it has left."""
    slots: np.ndarray | None = None
    """Its slots (`slots_of`), where they are made already."""


class Choice(NamedTuple):
    """The best prefix."""

    lengths: list[int]
    """Drafts of each candidate, in their order."""
    gain: float
    """Expected tokens of the step, times their weight."""
    seconds: float
    plain_gain: float
    """The same without any draft."""
    plain_seconds: float
    rows: float
    """Expected draft rows."""
    price: float
    """Weighted tokens that a second is worth."""

    @property
    def speedup(self) -> float:
        """Goodput / goodput without drafts."""
        if not self.plain_gain or not self.seconds:
            return 1.0
        return (self.gain / self.seconds) / (self.plain_gain / self.plain_seconds)


def best_lengths(
    candidates: Sequence[Candidate],
    plain_gain: float,
    verify: np.ndarray,
    draft: np.ndarray,
    price: float | None = None,
) -> Choice:
    """Return the draft lengths with the most goodput.

    Args:
        candidates: sequences that may draft.
        plain_gain: weighted tokens that the step emits without drafts: one for each decoding sequence.
        verify: seconds [n] of a step with 0 .. n - 1 draft rows, draft passes not counted.
        draft: seconds [n] of a draft pass over 0 .. n - 1 rows.
        price: weighted tokens that a second is worth; none takes the best goodput of this very step. Given
            where the step has other work to do, which has to be done at some time in any case.
    """
    base_seconds = float(verify[0])
    plain = Choice([0] * len(candidates), plain_gain, base_seconds, plain_gain, base_seconds, 0.0,
                   plain_gain / base_seconds if price is None else price)  # fmt: skip
    sizes = [len(candidate.profile.gain) for candidate in candidates]
    if not any(sizes):
        return plain
    parts = [slots_of(one.profile) if one.slots is None else one.slots for one in candidates]
    starts = [one.start_s for one in candidates]
    slots = _Slots.of(parts, sizes, np.array(starts) if any(starts) else None)
    found = [_best_prefix(slots, slots.by_survival(), plain, verify, draft, price)]
    if len(sizes) > 1 and slots.has_passes:
        # A draft pass is shared, so it may be better to go less deep with all: by depth is tried as well.
        found.append(_best_prefix(slots, slots.by_depth(), plain, verify, draft, price))
    return max(found, key=lambda one: one.worth).choice


SURVIVAL, GAIN, ROWS, ACTIVE = range(4)


def slots_of(profile: Profile) -> np.ndarray:
    """Return survival, gain, rows and active of the slots of one sequence [4, length].

    Survival is the mean of the rows at each position, and never more than at the one before, so that a slot
    never stands before the one that it builds on."""
    gain, rows, active = profile
    return np.array((np.minimum.accumulate(gain / np.maximum(rows, 1e-9)), gain, rows, active))


class _Slots(NamedTuple):
    """All slots, depth by depth: slot i is the one of sequence i % num_sequences at depth i //
    num_sequences."""

    values: np.ndarray
    """Survival, gain, rows and active [4, slots]. A sequence that goes less deep than others has slots of
    survival -1 in their place, which are worth nothing."""
    num_sequences: int
    is_there: np.ndarray | None
    """[slots]; none where all are."""
    starts: np.ndarray | None
    """Seconds before a sequence can draft [sequences]; none where there are none."""
    has_passes: bool

    @classmethod
    def of(cls, parts: Sequence[np.ndarray], sizes: Sequence[int], starts: np.ndarray | None) -> _Slots:
        num, depths = len(sizes), max(sizes)
        is_there = None
        if min(sizes) == depths:
            block = np.concatenate(parts).reshape(num, 4, depths)
        else:
            block = np.zeros((num, 4, depths))
            block[:, SURVIVAL] = -1.0
            for place, (part, size) in enumerate(zip(parts, sizes, strict=True)):
                block[place, :, :size] = part
        values = block.transpose(1, 2, 0).reshape(4, depths * num)
        if min(sizes) != depths:
            is_there = values[SURVIVAL] >= 0
        return cls(values, num, is_there, starts, bool(values[ACTIVE].any()))

    def by_survival(self) -> np.ndarray:
        """Return the order of survival; of equals the less deep comes first."""
        order: np.ndarray = (-self.values[SURVIVAL]).argsort(kind="stable")
        return order

    def by_depth(self) -> np.ndarray:
        """Return the order of depth, and of survival within each."""
        survival = self.values[SURVIVAL].reshape(-1, self.num_sequences)
        order: np.ndarray = (-survival).argsort(axis=1, kind="stable")
        order += np.arange(0, survival.size, self.num_sequences)[:, None]
        flat: np.ndarray = order.ravel()
        return flat


class _Found(NamedTuple):
    worth: float
    choice: Choice


def _best_prefix(
    slots: _Slots,
    order: np.ndarray,
    plain: Choice,
    verify: np.ndarray,
    draft: np.ndarray,
    price: float | None,
) -> _Found:
    """Return the best prefix of one order of slots, the empty one included."""
    values = slots.values[:, order]
    gained, num_rows = np.add.accumulate(values[GAIN : ROWS + 1], 1)
    gained += plain.gain
    seconds = np.interp(num_rows, _COUNT[: len(verify)], verify)
    if slots.has_passes:
        seconds += _draft_seconds(values[ACTIVE], order // slots.num_sequences, draft)
    if slots.starts is not None:
        is_first = order < slots.num_sequences
        seconds += np.add.accumulate(np.where(is_first, slots.starts[order % slots.num_sequences], 0.0))
    worth = gained / seconds if price is None else gained - price * seconds
    nothing = plain.price if price is None else plain.gain - price * plain.seconds
    best = int(worth.argmax())
    if worth[best] <= nothing:
        return _Found(nothing, plain)
    chosen = order[: best + 1]
    if slots.is_there is not None:
        chosen = chosen[slots.is_there[chosen]]
    return _Found(
        float(worth[best]),
        Choice(
            np.bincount(chosen % slots.num_sequences, minlength=slots.num_sequences).tolist(),
            float(gained[best]),
            float(seconds[best]),
            plain.gain,
            plain.seconds,
            float(num_rows[best]),
            float(worth[best]) if price is None else price,
        ),
    )


_COUNT = np.arange(1 << 16, dtype=np.float64)


def _draft_seconds(active: np.ndarray, depth: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """Return the seconds of all draft passes at each prefix [slots], given who takes part in each slot's
    pass."""
    members = np.zeros((len(active), int(depth.max()) + 1))
    members[np.arange(len(active)), depth] = active
    np.add.accumulate(members, 0, out=members)
    found: np.ndarray = np.interp(members, _COUNT[: len(draft)], draft).sum(axis=1)
    return found


def worthwhile_prefix(worth: Iterable[float], verify: Sequence[float], price: float) -> int:
    """Return how many of these tokens, best first, to give a row, when a second costs `price`."""
    # So few that plain numbers are quicker than arrays.
    gained, best, num = 0.0, -price * verify[0], 0
    for count, (one, seconds) in enumerate(zip(worth, itertools.islice(verify, 1, None), strict=False), 1):
        gained += one
        net = gained - price * seconds
        if net > best:
            best, num = net, count
    return num
