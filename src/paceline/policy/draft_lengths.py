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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.policy.profile import Profile


class Candidate(NamedTuple):
    """One sequence that may draft."""

    profile: Profile
    """Its expected draft, already cut at the most that is of use."""
    start_s: float = 0.0
    """Seconds before it can draft at all, spread over the steps that it has left."""
    survival: np.ndarray | None = None
    """What its slots are put in order by (`survival_of`), where that is known already."""


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
    sequence = np.repeat(np.arange(len(sizes)), sizes)
    depth = np.concatenate([_COUNT[:size] for size in sizes])
    parts = [candidate.profile for candidate in candidates if len(candidate.profile.gain)]
    gain = np.concatenate([part.gain for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    active = np.concatenate([part.active for part in parts])
    # Within a sequence a slot never stands before the one that it builds on.
    survival = np.concatenate(
        [
            survival_of(one.profile) if one.survival is None else one.survival
            for one in candidates
            if len(one.profile.gain)
        ]
    )
    starts = np.array([candidate.start_s for candidate in candidates])
    slots = _Slots(sequence, depth, gain, rows, active, starts)
    orders = [np.lexsort((sequence, depth, -survival))]
    if len(sizes) > 1 and active.any():
        # A draft pass is shared, so it may be better to go less deep with all: by depth is tried as well.
        orders.append(np.lexsort((sequence, -survival, depth)))
    found = [_best_prefix(slots, order, plain, verify, draft, price) for order in orders]
    return max(found, key=lambda one: one.worth).choice


class _Slots(NamedTuple):
    """One entry for each slot, but for `starts`, which has one for each candidate."""

    sequence: np.ndarray
    depth: np.ndarray
    gain: np.ndarray
    rows: np.ndarray
    active: np.ndarray
    starts: np.ndarray


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
    depth, sequence = slots.depth[order], slots.sequence[order]
    gained = plain.gain + np.cumsum(slots.gain[order])
    num_rows = np.cumsum(slots.rows[order])
    seconds = _at(verify, num_rows) + _draft_seconds(slots.active[order], depth, draft)
    if slots.starts.any():
        seconds = seconds + np.cumsum(np.where(depth == 0, slots.starts[sequence], 0.0))
    worth = gained / seconds if price is None else gained - price * seconds
    nothing = plain.price if price is None else plain.gain - price * plain.seconds
    best = int(worth.argmax())
    if worth[best] <= nothing:
        return _Found(nothing, plain)
    return _Found(
        float(worth[best]),
        Choice(
            np.bincount(sequence[: best + 1], minlength=len(slots.starts)).tolist(),
            float(gained[best]),
            float(seconds[best]),
            plain.gain,
            plain.seconds,
            float(num_rows[best]),
            float(worth[best]) if price is None else price,
        ),
    )


def survival_of(profile: Profile) -> np.ndarray:
    """Return the mean survival of the rows at each position; never more than at the one before."""
    found: np.ndarray = np.minimum.accumulate(profile.gain / np.maximum(profile.rows, 1e-9))
    return found


_COUNT = np.arange(64)


def _at(table: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Return a table's values between its entries [like where]; beyond its end, the last one."""
    low = np.minimum(where.astype(np.int64), len(table) - 1)
    high = np.minimum(low + 1, len(table) - 1)
    found: np.ndarray = table[low] + (where - low) * (table[high] - table[low])
    return found


def _draft_seconds(active: np.ndarray, depth: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """Return the seconds of all draft passes at each prefix [slots], given who takes part in each slot's
    pass."""
    num_depths = int(depth.max()) + 1
    members = np.zeros((len(active), num_depths))
    members[np.arange(len(active)), depth] = active
    found: np.ndarray = _at(draft, np.cumsum(members, axis=0)).sum(axis=1)
    return found


def worthwhile_prefix(worth: Sequence[float], verify: np.ndarray, price: float) -> int:
    """Return how many of these tokens, best first, to give a row, when a second costs `price`."""
    if not len(worth):
        return 0
    most = min(len(worth), len(verify) - 1)
    net = np.concatenate(([0.0], np.cumsum(worth[:most]))) - price * verify[: most + 1]
    return int(net.argmax())
