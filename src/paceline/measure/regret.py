"""How far the policy is from the best fixed setting, and from none: runs that take turns, and their ratios.

For each route and concurrency all settings follow one another, in another order each time, and that is
repeated. Ratios are of runs of the same repeat, so that a machine that slows down slows both sides. The best
fixed setting is chosen by the odd repeats and compared on the even ones: chosen and compared on the same
runs, luck would count for it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import ConfigError
from paceline.measure.load_mode import MOST_DRAFTS, Mode

AUTO, OFF = "auto", "off"
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)


@dataclass(frozen=True, slots=True)
class Run:
    """One timed run: a route at a concurrency in a setting."""

    route: str
    concurrency: int
    setting: str
    repeat: int
    """From 1."""
    tokens_per_second: float
    num_outputs: int
    num_identical: int | None
    """Outputs equal to those of the run without speculation in the same repeat; none for that run itself."""
    acceptance_rate: float | None = None
    mean_draft_length: float | None = None
    """Verified drafts for each decode step of a sequence."""
    predicted_speedup: float | None = None
    """Seconds that the run would have taken without drafts, from step costs, / those that it took; of auto
    only."""
    state: str | None = None
    """Of the route, after the run."""
    step_error: float | None = None
    """Median of |predicted / measured - 1| of step times, lately."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """How far single runs stray: the deviation of logarithms of paired ratios from their own cell's mean,
    pooled over cells. A cell of one to four pairs says next to nothing of that; all of them together do, as
    the machine disturbs them alike."""

    deviation: float
    freedom: int
    """Degrees of freedom."""

    @property
    def t95(self) -> float:
        """Student's t for 95 % intervals."""
        return _T95[self.freedom - 1] if self.freedom <= len(_T95) else 2.0

    @classmethod
    def of(cls, cells: Iterable[Sequence[Sequence[float]]]) -> Scatter | None:
        """Return the scatter of these cells; none where no cell has two pairs.

        Args:
            cells: of each, for each of its settings, ratios to the same plain runs. Settings of a cell share
                those runs, so together they count for no more degrees of freedom than one.
        """
        squares, freedom = 0.0, 0
        for settings in cells:
            logs = [np.log(np.array(ratios)) for ratios in settings if len(ratios) > 1]
            if logs:
                squares += float(np.mean([one.var(ddof=1) for one in logs])) * (len(logs[0]) - 1)
                freedom += len(logs[0]) - 1
        return cls(math.sqrt(squares / freedom), freedom) if freedom else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean of ratios of paired runs, with a 95 % interval by Student's t of their logarithms."""

    mean: float
    low: float | None
    """None for a single pair whose scatter is not known."""
    high: float | None

    @classmethod
    def of(cls, ratios: Sequence[float], scatter: Scatter | None = None) -> Ratio | None:
        """Return the ratio of these pairs; none without any.

        Args:
            ratios: of runs that belong together.
            scatter: of single ratios; without it that of these ratios.
        """
        if not ratios:
            return None
        scatter = scatter or Scatter.of([[ratios]])
        mean = float(np.log(np.array(ratios)).mean())
        if scatter is None:
            return cls(math.exp(mean), None, None)
        half = scatter.t95 * scatter.deviation / math.sqrt(len(ratios))
        return cls(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


@dataclass(frozen=True, slots=True)
class RegretCell:
    """One route at one concurrency."""

    route: str
    concurrency: int
    tokens_per_second: Mapping[str, float]
    """Means by setting."""
    auto_over_off: Ratio | None
    best_fixed: str | None
    """Chosen by the odd repeats; "off" is one of the candidates."""
    auto_over_best_fixed: Ratio | None
    """On the even repeats; none without any."""
    state: str | None
    predicted_speedup: float | None
    mean_draft_length: float | None
    num_outputs: int
    num_identical: int

    @classmethod
    def of(
        cls, route: str, concurrency: int, runs: Sequence[Run], scatter: Scatter | None = None
    ) -> RegretCell:
        """Sum up the runs of a cell."""
        speeds = _speeds(runs)
        auto = [run for run in runs if run.setting == AUTO]
        predicted = [run.predicted_speedup for run in auto if run.predicted_speedup is not None]
        lengths = [run.mean_draft_length for run in auto if run.mean_draft_length is not None]
        fixed = {name: by_repeat for name, by_repeat in speeds.items() if name != AUTO}
        odd = {
            name: np.mean([s for n, s in by_repeat.items() if n % 2])
            for name, by_repeat in fixed.items()
            if any(n % 2 for n in by_repeat)
        }
        best = max(odd, key=lambda name: float(odd[name]), default=None)
        compared = [run for run in runs if run.num_identical is not None]
        return cls(
            route=route,
            concurrency=concurrency,
            tokens_per_second={name: float(np.mean(list(by.values()))) for name, by in speeds.items()},
            auto_over_off=Ratio.of(_pairs(speeds.get(AUTO, {}), speeds.get(OFF, {})), scatter),
            best_fixed=best,
            auto_over_best_fixed=None
            if best is None
            else Ratio.of(
                _pairs({n: s for n, s in speeds.get(AUTO, {}).items() if n % 2 == 0}, fixed[best]), scatter
            ),
            state=auto[-1].state if auto else None,
            predicted_speedup=float(np.mean(predicted)) if predicted else None,
            mean_draft_length=float(np.mean(lengths)) if lengths else None,
            num_outputs=sum(run.num_outputs for run in compared),
            num_identical=sum(run.num_identical or 0 for run in compared),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the cell's object in the output of `paceline bench regret --json`."""
        off, best = self.auto_over_off, self.auto_over_best_fixed
        return {
            "route": self.route,
            "concurrency": self.concurrency,
            "auto_over_off": off and off.mean,
            "auto_over_off_lower": off and off.low,
            "auto_over_off_upper": off and off.high,
            "auto_over_best_fixed": best and best.mean,
            "auto_over_best_fixed_lower": best and best.low,
            "auto_over_best_fixed_upper": best and best.high,
            "best_fixed": self.best_fixed,
            "state": self.state,
            "predicted_speedup": self.predicted_speedup,
            "measured_speedup": off and off.mean,
            "mean_draft_length": self.mean_draft_length,
            "tokens_per_second": dict(self.tokens_per_second),
            "num_outputs": self.num_outputs,
            "num_identical": self.num_identical,
        }


def _speeds(runs: Sequence[Run]) -> dict[str, dict[int, float]]:
    """Return tokens/s by setting and repeat."""
    speeds: dict[str, dict[int, float]] = {}
    for run in runs:
        speeds.setdefault(run.setting, {})[run.repeat] = run.tokens_per_second
    return speeds


def _pairs(above: Mapping[int, float], below: Mapping[int, float]) -> list[float]:
    return [above[n] / below[n] for n in sorted(above) if n in below and below[n] > 0 and above[n] > 0]


def _to_plain(runs: Sequence[Run]) -> list[list[float]]:
    """Return each setting's ratios to the plain runs of the same repeats."""
    speeds = _speeds(runs)
    plain = speeds.pop(OFF, {})
    return [_pairs(by_repeat, plain) for by_repeat in speeds.values()]


def summarise(runs: Iterable[Run]) -> list[RegretCell]:
    """Return the cells of all runs, in the order in which they first came; intervals go by the scatter of all
    cells together."""
    by_cell: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        by_cell.setdefault((run.route, run.concurrency), []).append(run)
    scatter = Scatter.of(_to_plain(found) for found in by_cell.values())
    return [RegretCell.of(route, n, found, scatter) for (route, n), found in by_cell.items()]


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Return the geometric mean of those that there are."""
    found = [value for value in values if value is not None]
    return float(np.exp(np.mean(np.log(found)))) if found else None


def in_turns(settings: Sequence[Mode], repeat: int, cell: int) -> Iterator[Mode]:
    """Yield the settings of one repeat of one cell, each time from another one on; "off" comes first of all
    runs that are compared with it only where that is its turn."""
    start = (repeat + cell) % len(settings)
    yield from (*settings[start:], *settings[:start])


def parse_settings(text: str, drafters: Sequence[str]) -> tuple[Mode, ...]:
    """Return the settings of a list such as "off,auto,model:2,suffix:4".

    Raises:
        ConfigError: one is spelt wrong, has no such drafter or comes twice, or "off" or "auto" is missing.
    """
    words = [word.strip() for word in text.split(",")]
    modes = tuple(_parse(word, drafters) for word in words)
    if len(set(words)) < len(words) or not {AUTO, OFF} <= set(words):
        raise _refuse(text, "each setting once, off and auto among them")
    return modes


def _parse(word: str, drafters: Sequence[str]) -> Mode:
    if word == OFF:
        return Mode()
    if word == AUTO:
        return Mode(label=AUTO, is_auto=True)
    name, _, length = word.partition(":")
    if name not in drafters or not length.isdecimal() or not 1 <= int(length) <= MOST_DRAFTS:
        raise _refuse(word, f"off, auto, or DRAFTER:K with K from 1 to 64 and one of {', '.join(drafters)}")
    return Mode(int(length), name, word)


def _refuse(given: str, expected: str) -> ConfigError:
    return ConfigError(
        given=f"--settings {given}",
        expected=expected,
        remedy="Write --settings off,auto,model:2,model:4,suffix:4",
    )


class RunFile:
    """Runs as lines of JSON, the first line saying what they are runs of, so that a measurement can go on.

    Args:
        path: the file, made if it is not there; none keeps nothing.
        what: all that runs depend on.

    Raises:
        ConfigError: the file has runs of something else, or cannot be read.
    """

    def __init__(self, path: Path | None, what: Mapping[str, Any]) -> None:
        self._path = path
        self.runs: list[Run] = []
        if path is None:
            return
        if not path.exists():
            self._append({"regret": dict(what)})
            return
        try:
            lines = [
                json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
            ]
            header, found = lines[0]["regret"], [Run(**line) for line in lines[1:]]
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(
                given=f"--resume {path} ({type(error).__name__}: {error})",
                expected="a file that an earlier run of this command wrote",
                remedy="Give another path, or remove the file",
            ) from None
        wanted = json.loads(json.dumps(dict(what)))
        if header != wanted:
            different = [key for key in {*header, *wanted} if header.get(key) != wanted.get(key)]
            raise ConfigError(
                given=f"--resume {path}, whose runs have another {', '.join(sorted(different))}",
                expected="runs of the same models, input and settings",
                remedy="Give another path, or the options of then",
            )
        self.runs = found

    def has(self, route: str, concurrency: int, setting: str, repeat: int) -> bool:
        """Whether that run is there already."""
        wanted = (route, concurrency, setting, repeat)
        return any((r.route, r.concurrency, r.setting, r.repeat) == wanted for r in self.runs)

    def add(self, run: Run) -> None:
        """Keep a run."""
        self.runs.append(run)
        self._append(asdict(run))

    def _append(self, value: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
