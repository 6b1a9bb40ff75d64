"""How far the policy is from the best fixed setting, and from none: settings that take turns, slice by slice.

For each route and concurrency the requests are cut into slices. Of each slice all settings have a turn, one
after the other, in an order that rotates, and that is repeated. Ratios are of the same slice of the same
repeat, seconds to a minute apart, so that a machine that slows down slows both sides. The best fixed setting
is chosen by the odd repeats and compared on the even ones (odd and even slices, where there is one repeat):
chosen and compared on the same slices, luck would count for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.measure.paired import Pair, Ratio, Scatter, Work, single_ratios
from paceline.measure.turns import AUTO, OFF

Place = tuple[int, int]
"""(repeat, slice), both from 1."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Some requests of a run, answered at once: from the first submission to the last token."""

    num_tokens: int
    """Of all answers."""
    wall_s: float
    num_decoded: int
    """Tokens behind the first of their answers."""
    decode_s: float
    """From an answer's first token to its last, summed over answers."""
    num_steps: int
    plain_s: float | None = None
    """Seconds that plain decoding takes by step costs: of auto, as they were just after it, at the speed that
    its own passes had; of off, as they were known just before; else none."""

    @property
    def work(self) -> Work:
        """Tokens and seconds, prompts included."""
        return self.num_tokens, self.wall_s

    @property
    def decoding(self) -> Work:
        """Tokens and seconds behind first tokens."""
        return self.num_decoded, self.decode_s


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of a route once, at a concurrency, in a setting."""

    route: str
    concurrency: int
    setting: str
    repeat: int
    """From 1."""
    slices: tuple[Slice, ...]
    """In their order; those of all runs of a repeat have the same requests."""
    num_outputs: int
    num_identical: int | None
    """Outputs equal to those of the run without speculation in the same repeat; none for that run itself."""
    acceptance_rate: float | None = None
    mean_draft_length: float | None = None
    """Verified drafts for each decode step of a sequence."""
    state: str | None = None
    """Of the route, after the run; of auto only."""
    step_error: float | None = None
    """Median of |predicted / measured - 1| of step times, lately; of auto only."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens / the sum of its slices' seconds."""
        return _speed([one.work for one in self.slices])


@dataclass(frozen=True, slots=True)
class RegretCell:
    """One route at one concurrency."""

    route: str
    concurrency: int
    tokens_per_second: Mapping[str, float]
    """By setting: tokens of all repeats / seconds."""
    auto_over_off: Ratio | None
    decode_auto_over_off: Ratio | None
    """The same behind first tokens alone."""
    best_fixed: str | None
    """Chosen by the odd repeats, or by odd slices of the only one; "off" is one of the candidates."""
    auto_over_best_fixed: Ratio | None
    """On the even ones; none without any."""
    state: str | None
    predicted_speedup: float | None
    """Seconds that auto's slices would have taken without drafts, by step costs / those that they took."""
    forecast_of_off: float | None
    """Seconds of off's slices by step costs as they were known before each / those that they took."""
    mean_draft_length: float | None
    mean_batch: float | None
    """Sequences that decode in a step of off: fewer than there are clients, as slices thin out at their
    end."""
    num_slices: int
    """Of auto that have a slice of off beside them, over all repeats."""
    num_outputs: int
    num_identical: int

    @classmethod
    def of(
        cls, route: str, concurrency: int, runs: Sequence[Run], scatter: Mapping[str, Scatter | None]
    ) -> RegretCell:
        """Sum up the runs of a cell.

        Args:
            route: of all runs.
            concurrency: of all runs.
            runs: of this cell.
            scatter: of single pairs over all cells (`scatter_of`), for cells of few slices.
        """
        by_setting = _slices(runs)
        auto, off = by_setting.get(AUTO, {}), by_setting.get(OFF, {})
        autos = [run for run in runs if run.setting == AUTO]
        lengths = [run.mean_draft_length for run in autos if run.mean_draft_length is not None]
        fixed = {name: slices for name, slices in by_setting.items() if name != AUTO}
        best, compared = _best_fixed(fixed)
        checked = [run for run in runs if run.num_identical is not None]
        return cls(
            route=route,
            concurrency=concurrency,
            tokens_per_second={
                name: _speed([s.work for s in one.values()]) for name, one in by_setting.items()
            },
            auto_over_off=Ratio.of_sums(_pairs(auto, off), scatter.get("work")),
            decode_auto_over_off=Ratio.of_sums(_decoding_pairs(auto, off), scatter.get("decoding")),
            best_fixed=best,
            auto_over_best_fixed=None
            if best is None
            else Ratio.of_sums(_pairs(auto, {p: fixed[best][p] for p in compared}), scatter.get("work")),
            state=autos[-1].state if autos else None,
            predicted_speedup=_predicted(auto.values()),
            forecast_of_off=_predicted(off.values()),
            mean_draft_length=float(np.mean(lengths)) if lengths else None,
            mean_batch=_mean_batch(off.values()),
            num_slices=len(auto.keys() & off.keys()),
            num_outputs=sum(run.num_outputs for run in checked),
            num_identical=sum(run.num_identical or 0 for run in checked),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the cell's object in the output of `paceline bench regret --json`."""
        off, best, decoding = self.auto_over_off, self.auto_over_best_fixed, self.decode_auto_over_off
        return {
            "route": self.route,
            "concurrency": self.concurrency,
            "auto_over_off": off and off.mean,
            "auto_over_off_lower": off and off.low,
            "auto_over_off_upper": off and off.high,
            "decode_auto_over_off": decoding and decoding.mean,
            "decode_auto_over_off_lower": decoding and decoding.low,
            "decode_auto_over_off_upper": decoding and decoding.high,
            "auto_over_best_fixed": best and best.mean,
            "auto_over_best_fixed_lower": best and best.low,
            "auto_over_best_fixed_upper": best and best.high,
            "best_fixed": self.best_fixed,
            "state": self.state,
            "predicted_speedup": self.predicted_speedup,
            "measured_speedup": off and off.mean,
            "forecast_of_off": self.forecast_of_off,
            "mean_draft_length": self.mean_draft_length,
            "mean_batch": self.mean_batch,
            "tokens_per_second": dict(self.tokens_per_second),
            "num_slices": self.num_slices,
            "num_outputs": self.num_outputs,
            "num_identical": self.num_identical,
        }


def _slices(runs: Iterable[Run]) -> dict[str, dict[Place, Slice]]:
    """Return slices by setting and place."""
    found: dict[str, dict[Place, Slice]] = {}
    for run in runs:
        places = found.setdefault(run.setting, {})
        places.update({(run.repeat, number): one for number, one in enumerate(run.slices, 1)})
    return found


def _speed(works: Sequence[Work]) -> float:
    seconds = sum(work[1] for work in works)
    return sum(work[0] for work in works) / seconds if seconds > 0 else 0.0


def _best_fixed(fixed: Mapping[str, Mapping[Place, Slice]]) -> tuple[str | None, list[Place]]:
    """Return the fastest fixed setting of the places that choose, and the places on which to compare with
    it."""
    places = sorted({place for slices in fixed.values() for place in slices})
    by = 0 if len({repeat for repeat, _ in places}) > 1 else 1
    choosing = {place for place in places if place[by] % 2}
    speeds = {
        name: _speed([one.work for place, one in slices.items() if place in choosing])
        for name, slices in fixed.items()
    }
    best = max((name for name in speeds if speeds[name] > 0), key=lambda name: speeds[name], default=None)
    if best is None:
        return None, []
    return best, [place for place in places if place not in choosing and place in fixed[best]]


def _pairs(one: Mapping[Place, Slice], other: Mapping[Place, Slice]) -> list[Pair]:
    return [(one[place].work, other[place].work) for place in sorted(one) if place in other]


def _decoding_pairs(one: Mapping[Place, Slice], other: Mapping[Place, Slice]) -> list[Pair]:
    return [(one[place].decoding, other[place].decoding) for place in sorted(one) if place in other]


def _mean_batch(slices: Collection[Slice]) -> float | None:
    """Return tokens behind first ones / steps, of slices without drafts."""
    num_steps = sum(one.num_steps for one in slices)
    return sum(one.num_decoded for one in slices) / num_steps if num_steps else None


def _predicted(slices: Iterable[Slice]) -> float | None:
    """Return the sum of forecasts / the sum of what was measured."""
    known = [(one.plain_s, one.wall_s) for one in slices if one.plain_s is not None]
    seconds = sum(wall_s for _, wall_s in known)
    return sum(plain_s for plain_s, _ in known) / seconds if seconds > 0 else None


def scatter_of(cells: Iterable[Sequence[Run]]) -> dict[str, Scatter | None]:
    """Return how far ratios of single slices to the plain ones stray, over all cells: of "work" and of
    "decoding"."""
    found: dict[str, list[list[list[float]]]] = {"work": [], "decoding": []}
    for runs in cells:
        by_setting = _slices(runs)
        plain = by_setting.pop(OFF, {})
        found["work"].append([single_ratios(_pairs(one, plain)) for one in by_setting.values()])
        found["decoding"].append([single_ratios(_decoding_pairs(one, plain)) for one in by_setting.values()])
    return {name: Scatter.of(ratios) for name, ratios in found.items()}


def summarise(runs: Iterable[Run]) -> list[RegretCell]:
    """Return the cells of all runs, in the order in which they first came."""
    by_cell: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        by_cell.setdefault((run.route, run.concurrency), []).append(run)
    scatter = scatter_of(by_cell.values())
    return [RegretCell.of(route, n, found, scatter) for (route, n), found in by_cell.items()]
