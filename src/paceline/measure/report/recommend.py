"""What a route should be served with, by the loads that were timed, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.measure.report.cells import break_even
from paceline.measure.setting import OFF, Setting

WORTH = 1.03
"""Less than this over plain decoding, at every load, is not worth a draft model or a setting."""
NEVER_BELOW = 0.97
"""Of plain decoding, at any load that was timed."""
FIXED_AHEAD = 1.03
"""How far ahead of the policy a fixed draft length must be, over all loads, to be preferred: the policy goes
by the load of the moment, also where it was not timed."""
SHOWN_APART = 0.005
"""Speeds that differ by more are not the same to two places."""
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


def choose(loads: Sequence[Mapping[str, Any]], most_drafts: int, agreement: Mapping[str, float]) -> Choice:
    """Return what to serve a route with.

    Args:
        loads: the figures of its loads (`cells.load_figures`).
        most_drafts: longest draft that was allowed.
        agreement: share of tokens that each drafter guesses, by name.
    """
    known = {load["concurrency"]: _speedups(load) for load in loads}
    is_measured = any(load["is_timed"] for load in loads)
    basis = _basis(loads) if is_measured else "forecast from step costs, not timed: the budget was too short"
    best = {n: max(found.items(), key=lambda one: one[1], default=(OFF, 1.0)) for n, found in known.items()}
    off = Choice(Setting(), 0, "", dict.fromkeys(known, 1.0), is_measured)
    if all(value < WORTH for _, value in best.values()):
        return replace(off, reason=_not_worth(best, loads, agreement, basis))
    whole = _whole(loads, known)
    auto = {
        label: at
        for label, at in whole.items()
        if Setting.parse(label).is_auto and _gains(at, best) and _may_hold(label, loads)
    }
    fixed = {
        label: {n: value for n, value in at.items() if value is not None}
        for label, at in whole.items()
        if not Setting.parse(label).is_auto
        and all(value is not None and value >= NEVER_BELOW for value in at.values())
        and _gains(at, best)
    }
    first = max(auto, key=lambda one: _mean(auto[one]), default=None)
    second = max(fixed, key=lambda one: _mean(fixed[one]), default=None)
    if second is not None and (first is None or _is_ahead(fixed[second], auto[first])):
        text = f"{_list(fixed[second])}, {basis}; the policy's own choice was slower, or was not timed"
        return Choice(Setting.parse(second), most_drafts, text, fixed[second], is_measured)
    if first is None:
        return replace(off, reason=_gains_but_loses(best, whole, basis))
    text = (
        f"{_list(auto[first])}, {basis}" if any(auto[first].values()) else f"the policy is to choose, {basis}"
    )
    rivals = [f"{one} {value:.2f}x" for one, value in map(_best_fixed, known.values()) if one]
    if rivals:
        text += "; the best fixed settings there: " + ", ".join(rivals)
    return Choice(Setting.parse(first), _room(known, most_drafts), text, auto[first], is_measured)


def _whole(
    loads: Sequence[Mapping[str, Any]], known: Mapping[int, Mapping[str, float]]
) -> dict[str, dict[int, float | None]]:
    """Return the speedup of each setting at every load; none where it was neither timed nor forecast."""
    labels = [label for load in loads for label in (*load["chosen"], *known[load["concurrency"]])]
    return {label: {n: found.get(label) for n, found in known.items()} for label in dict.fromkeys(labels)}


def _gains(at: Mapping[int, float | None], best: Mapping[int, tuple[str, float]]) -> bool:
    """Whether a setting gains anywhere; of one that was timed nowhere, whether others are forecast to."""
    values = [value for value in at.values() if value is not None]
    return max(values, default=max(value for _, value in best.values())) >= WORTH


def _is_ahead(fixed: Mapping[int, float], auto: Mapping[int, float | None]) -> bool:
    """Whether a fixed setting is clearly faster than the policy over the loads that both have."""
    shared = [n for n, value in auto.items() if value is not None and n in fixed]
    return bool(shared) and _mean({n: fixed[n] for n in shared}) > FIXED_AHEAD * _mean(
        {n: auto[n] for n in shared}
    )


def _may_hold(label: str, loads: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the policy is nowhere shown to be below: it goes back to plain decoding by itself where it
    loses, and a few runs scatter by more than what it may lose."""
    for load in loads:
        found = next((one["weighed"] for one in load["settings"] if one["setting"] == label), None)
        if found is not None and max(found["value"], found["high"] or 0.0) < NEVER_BELOW:
            return False
    return True


def _basis(loads: Sequence[Mapping[str, Any]]) -> str:
    """Say what speeds rest on."""
    settings = [one for load in loads for one in load["settings"]]
    differs = any(
        abs(one["weighed"]["value"] / one["speedup"]["value"] - 1) > SHOWN_APART for one in settings
    )
    return "measured" + ", weighed with forecasts" * differs


def _speedups(load: Mapping[str, Any]) -> dict[str, float]:
    """Return each setting's speedup at a load: as timed, weighed with its forecast, and only where none was
    timed as forecast."""
    if load["is_timed"]:
        return {one["setting"]: one["weighed"]["value"] for one in load["settings"]}
    return {one["setting"]: one["speedup"] for one in load["forecasts"]}


def _mean(at: Mapping[int, float | None]) -> float:
    known = [value for value in at.values() if value is not None]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else 1.0


def _best_fixed(found: Mapping[str, float]) -> tuple[str, float]:
    fixed = {label: value for label, value in found.items() if not Setting.parse(label).is_auto}
    return max(fixed.items(), key=lambda one: one[1], default=("", 0.0))


def _room(known: Mapping[int, Mapping[str, float]], most_drafts: int) -> int:
    """Return the longest draft that the policy may make."""
    lengths = [Setting.parse(label).draft_length for label, _ in map(_best_fixed, known.values()) if label]
    return max(1, min(most_drafts, ROOM * max((length or 1 for length in lengths), default=most_drafts)))


def _list(at: Mapping[int, float | None]) -> str:
    return ", ".join(f"{value:.2f}x at {_clients(n)}" for n, value in at.items() if value is not None)


def _clients(concurrency: int) -> str:
    return "1 client" if concurrency == 1 else f"{concurrency} clients"


def _not_worth(
    best: Mapping[int, tuple[str, float]],
    loads: Sequence[Mapping[str, Any]],
    agreement: Mapping[str, float],
    basis: str,
) -> str:
    found = ", ".join(f"{label} {value:.2f}x at {_clients(n)}" for n, (label, value) in best.items())
    text = f"do not speculate: nothing gains {WORTH - 1:.0%} at any load ({found}; {basis})"
    even = break_even(loads[0])
    if even is None:
        return text
    drafter, needed = even
    if needed is None:
        text += "; drafts of the draft model would not pay for their steps if all of them stood"
    elif agreement.get(drafter, 1.0) < needed:
        text += (
            f"; a drafted token stands in {agreement[drafter]:.2f} of cases, and pays from {needed:.2f} on"
        )
    return text


def _gains_but_loses(
    best: Mapping[int, tuple[str, float]], whole: Mapping[str, Mapping[int, float | None]], basis: str
) -> str:
    gains = ", ".join(f"{label} {value:.2f}x at {_clients(n)}" for n, (label, value) in best.items())
    lowest = [value for at in whole.values() for value in at.values() if value is not None]
    worst = min(lowest, default=0.0)
    return (
        f"do not speculate: some settings gain at some loads ({gains}; {basis}), but none holds "
        f"{NEVER_BELOW:.2f}x of plain decoding at all of them (down to {worst:.2f}x)"
    )
