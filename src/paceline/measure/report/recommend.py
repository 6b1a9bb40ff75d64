"""What a route should be served with, by the loads that were timed, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.measure.setting import OFF, Setting

WORTH = 1.03
"""Less than this over plain decoding, at every load, is not worth a draft model or a setting."""
NEVER_BELOW = 0.97
"""Of plain decoding, at any load that was timed."""
FIXED_AHEAD = 1.03
"""How far ahead of the policy a fixed draft length must be, over all loads, to be preferred: the policy goes
by the load of the moment, also where it was not timed."""
ROOM = 2
"""The policy may draft so many times as deep as the best fixed length: where the draft is sure, longer drafts
are worth it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting to serve, with what it did."""

    setting: Setting
    max_draft_length: int
    reason: str
    speedups: Mapping[int, float | None]
    """At each load; none where it was neither timed nor forecast."""
    is_measured: bool
    """Whether any load was timed; else all of it rests on forecasts."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "setting": self.setting.label,
            "speculates": not self.setting.is_off,
            "route": self.setting.route(self.max_draft_length),
            "reason": self.reason,
            "speedups": [{"concurrency": n, "value": value} for n, value in self.speedups.items()],
            "is_measured": self.is_measured,
        }


def choose(loads: Sequence[Mapping[str, Any]], most_drafts: int, agreement: float | None) -> Choice:
    """Return what to serve a route with.

    Args:
        loads: the figures of its loads (`cells.load_figures`).
        most_drafts: longest draft that was allowed.
        agreement: share of tokens that its best drafter guesses.
    """
    known = {load["concurrency"]: _speedups(load) for load in loads}
    is_measured = any(load["is_timed"] for load in loads)
    basis = "measured" if is_measured else "forecast from step costs, not timed: the budget was too short"
    best = {n: max(found.items(), key=lambda one: one[1], default=(OFF, 1.0)) for n, found in known.items()}
    off = Choice(Setting(), 0, "", dict.fromkeys(known, 1.0), is_measured)
    if all(value < WORTH for _, value in best.values()):
        return _because(off, _not_worth(best, loads, agreement, basis))
    labels = dict.fromkeys(label for found in known.values() for label in found)
    whole = {
        label: {n: found[label] for n, found in known.items()}
        for label in labels
        if all(label in found for found in known.values())
    }
    sound = {
        label: at for label, at in whole.items() if min(at.values()) >= NEVER_BELOW and _mean(at) >= WORTH
    }
    fixed = {label: at for label, at in sound.items() if not Setting.parse(label).is_auto}
    auto = {label: at for label, at in sound.items() if Setting.parse(label).is_auto}
    first = max(auto, key=lambda one: _mean(auto[one]), default=None)
    second = max(fixed, key=lambda one: _mean(fixed[one]), default=None)
    if first is None and second is None:
        return _because(off, _gains_but_loses(best, whole, basis))
    is_fixed = first is None or (
        second is not None and _mean(fixed[second]) > FIXED_AHEAD * _mean(auto[first])
    )
    label = second if is_fixed and second is not None else first
    assert label is not None
    setting, at = Setting.parse(label), sound[label]
    text = f"{_list(at)}, {basis}"
    if setting.is_auto:
        text += "; the best fixed settings there: " + ", ".join(
            f"{one} {value:.2f}x" for one, value in (_best_fixed(found) for found in known.values()) if one
        )
    else:
        text += "; it is ahead of the policy's own choice, or the policy fell below plain decoding"
    return Choice(setting, _room(known, most_drafts), text, at, is_measured)


def _because(choice: Choice, reason: str) -> Choice:
    return Choice(choice.setting, choice.max_draft_length, reason, choice.speedups, choice.is_measured)


def _speedups(load: Mapping[str, Any]) -> dict[str, float]:
    """Return each setting's speedup at a load: as timed, and only where none was timed as forecast."""
    if load["is_timed"]:
        return {one["setting"]: one["speedup"]["value"] for one in load["settings"]}
    return {one["setting"]: one["speedup"] for one in load["forecasts"]}


def _mean(at: Mapping[int, float]) -> float:
    return math.exp(sum(math.log(value) for value in at.values()) / len(at))


def _best_fixed(found: Mapping[str, float]) -> tuple[str, float]:
    fixed = {label: value for label, value in found.items() if not Setting.parse(label).is_auto}
    return max(fixed.items(), key=lambda one: one[1], default=("", 0.0))


def _room(known: Mapping[int, Mapping[str, float]], most_drafts: int) -> int:
    """Return the longest draft that the policy may make."""
    lengths = [Setting.parse(label).draft_length for label, _ in map(_best_fixed, known.values()) if label]
    return max(1, min(most_drafts, ROOM * max((length or 1 for length in lengths), default=most_drafts)))


def _list(at: Mapping[int, float]) -> str:
    return ", ".join(f"{value:.2f}x at {_clients(n)}" for n, value in at.items())


def _clients(concurrency: int) -> str:
    return "1 client" if concurrency == 1 else f"{concurrency} clients"


def _not_worth(
    best: Mapping[int, tuple[str, float]],
    loads: Sequence[Mapping[str, Any]],
    agreement: float | None,
    basis: str,
) -> str:
    found = ", ".join(f"{label} {value:.2f}x at {_clients(n)}" for n, (label, value) in best.items())
    text = f"do not speculate: nothing gains {WORTH - 1:.0%} at any load ({found}; {basis})"
    needed = loads[0]["break_even_acceptance"]
    if agreement is not None and needed is not None and agreement < needed:
        text += f"; a drafted token stands in {agreement:.2f} of cases, and {needed:.2f} would be needed"
    elif needed is None:
        text += "; not even drafts that always stand would pay for their steps"
    return text


def _gains_but_loses(
    best: Mapping[int, tuple[str, float]], whole: Mapping[str, Mapping[int, float]], basis: str
) -> str:
    gains = ", ".join(f"{label} {value:.2f}x at {_clients(n)}" for n, (label, value) in best.items())
    worst = min((min(at.values()) for at in whole.values()), default=0.0)
    return (
        f"do not speculate: some settings gain at some loads ({gains}; {basis}), but none holds "
        f"{NEVER_BELOW:.2f}x of plain decoding at all of them (down to {worst:.2f}x)"
    )
