"""One step with several draft models: whose passes are paid for, and which of them is tried.

A draft pass is shared by the sequences that draft with the same model, and by no others. So sequences are
taken model by model, the model that gains most by itself first, and each finds the step as those before it
left it: their rows, their seconds, their tokens. Beside each sequence's own best model, each model for all is
looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from paceline.policy.draft_lengths import Candidate, Choice, best_lengths
from paceline.policy.profile import Prices, Profile


class Arm(NamedTuple):
    """One way of drafting for one sequence."""

    drafter: str
    profile: Profile
    start_s: float
    """Seconds of a look-up, and of reading a text first, in each step."""
    value: float
    """What it is worth in a step beyond its cost, at the prices of the last one."""
    model_value: float
    """The same of asking the draft model, whatever the arm."""
    model: str | None
    """The draft model that it may ask."""
    gain: float
    """Expected tokens, times their weight."""
    riding_value: float
    """Its value where the draft passes are made for others in any case."""
    slots: np.ndarray
    """Its slots, as the search takes them."""


class Passes(NamedTuple):
    """What forward passes of one draft model cost in a step."""

    seconds: np.ndarray
    """[n] of a pass over 0 .. n - 1 rows."""
    prices: Prices
    """Of a row, and of one sequence's part in a pass that it shares with all who may draft."""
    riding: Prices
    """The same where the pass is made for others in any case."""


def choose_in_turn(
    arms: Sequence[Arm],
    plain_gain: float,
    verify: np.ndarray,
    passes: Mapping[str, Passes],
    price: float | None,
) -> Choice:
    """Return draft lengths for sequences of which some draft with one model and some with another.

    Args:
        arms: each sequence's way of drafting.
        plain_gain, verify, price: see `best_lengths`.
        passes: by draft model.
    """
    groups: dict[str | None, list[int]] = {}
    for place, arm in enumerate(arms):
        groups.setdefault(arm.model, []).append(place)
    nothing = np.zeros(2)

    def best(model: str | None, gain: float, table: np.ndarray) -> Choice:
        candidates = [Candidate(a.profile, a.start_s, a.slots) for a in (arms[p] for p in groups[model])]
        seconds = nothing if model is None else passes[model].seconds
        return best_lengths(candidates, gain, table, seconds, price)

    alone = {model: best(model, plain_gain, verify).speedup for model in groups}
    lengths, gain, rows, table = [0] * len(arms), plain_gain, 0.0, verify
    for model in sorted(groups, key=lambda model: -alone[model]):
        found = best(model, gain, table)
        if not any(found.lengths):
            continue
        for place, length in zip(groups[model], found.lengths, strict=True):
            lengths[place] = length
        gain, rows = found.gain, rows + found.rows
        table = table[min(round(found.rows), len(table) - 1) :]
        table = table + (found.seconds - float(table[0]))
    seconds, plain_seconds = float(table[0]), float(verify[0])
    return Choice(lengths, gain, seconds, plain_gain, plain_seconds, rows,
                  gain / seconds if price is None else price)  # fmt: skip


def plans(ways: Sequence[Sequence[Arm]]) -> list[list[Arm]]:
    """Return what is worth being compared: each sequence's own best way, and each draft model for all."""
    own = [max(arms, key=lambda arm: arm.value) for arms in ways]
    found = [own]
    for model in dict.fromkeys(arm.model for arms in ways for arm in arms if arm.model is not None):
        of_one = [[arm for arm in arms if arm.model in (None, model)] for arms in ways]
        if all(of_one):
            found.append([max(arms, key=lambda arm: arm.value) for arms in of_one])
    return found
