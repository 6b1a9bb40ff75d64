"""What a forward pass costs on this machine, by rows, sequences and context: calibrated once, corrected
always.

The calibrated curve gives the shape. What steps really take corrects it by a filter over logarithms:

    log(measured / calibrated) = G + delta(rows) + noise

G is the speed of the machine now, a random walk, since clocks and neighbours change by the minute and change
all passes alike. delta is the error of the shape: a Gaussian process over log2(rows), so that what is learned
at four rows says something of five, little of sixteen, and nothing is ever assumed to be monotone. Both are
one linear Gaussian state with exact updates; an outlier is cut at three standard deviations (Huber), and the
noise is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from paceline.errors import ConfigError

GRID = np.array([*range(1, 17), 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024], dtype=np.float64)
"""Rows at which corrections are kept; between them they are interpolated."""
SHAPE_SD = 0.10
"""How far off the calibrated shape may be, in logarithms, before anything was seen."""
SHAPE_LENGTH = 0.35
"""Distance in log2(rows) at which two errors of the shape have little to do with each other."""
SPEED_SD = 0.30
GUESSED_SPEED_SD, GUESSED_SHAPE_SD, GUESSED_SHAPE_LENGTH = 2.0, 0.25, 1.0
WALK_SD = 0.02
"""What the machine's speed changes by from one step to the next."""
FORGETTING = 2e-4
"""Share of what was learned of the shape that a step lets go."""
LEAST_NOISE = 0.01
HUBER = 3.0
MAX_ROWS = 1024
LEAST_TABLE = 160


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of one forward pass, as calibrated.

    T(rows, sequences, context) = base(rows) + per_sequence (sequences - 1) + per_context context, with
    `context` the positions before the rows, summed over the sequences."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    """base(rows); straight lines between, and the last slope beyond. Bumps are as they were measured."""
    per_sequence_s: float = 0.0
    per_context_s: float = 0.0

    def __post_init__(self) -> None:
        is_ascending = all(a < b for a, b in zip(self.rows, self.rows[1:], strict=False))
        if (
            len(self.rows) != len(self.seconds)
            or not self.rows
            or self.rows[0] < 1
            or not is_ascending
            or not all(math.isfinite(s) and s > 0 for s in self.seconds)
            or not all(math.isfinite(s) and s >= 0 for s in (self.per_sequence_s, self.per_context_s))
        ):
            raise ConfigError(
                given=f"step costs of {len(self.seconds)} numbers for rows {list(self.rows)}",
                expected="ascending numbers of rows, with a positive number of seconds for each",
                remedy="Calibrate again with `paceline calibrate`",
            )

    @classmethod
    def of(cls, seconds_by_rows: Mapping[int, float], **more: float) -> Self:
        """Return the curve of a table."""
        items = sorted(seconds_by_rows.items())
        return cls(tuple(rows for rows, _ in items), tuple(seconds for _, seconds in items), **more)

    def base(self, rows: Sequence[float] | np.ndarray | float) -> np.ndarray:
        """Return seconds [like rows] without sequences and context; 0 at no row."""
        wanted = np.asarray(rows, dtype=np.float64)
        x, y = np.array(self.rows, dtype=np.float64), np.array(self.seconds)
        found = np.interp(wanted, x, y)
        if len(x) > 1:
            # The slope from the last doubling, since two neighbours alone may be a bump.
            k = int(np.searchsorted(x, x[-1] / 2))
            k = min(k, len(x) - 2)
            slope = max(0.0, (y[-1] - y[k]) / (x[-1] - x[k]))
        else:
            slope = 0.0
        found = np.where(wanted > x[-1], y[-1] + slope * (wanted - x[-1]), found)
        low: np.ndarray = np.where(wanted < 1, found * np.maximum(wanted, 0.0), found)
        return low

    def seconds_of(self, rows: float, sequences: int = 1, context: float = 0.0) -> float:
        """Return the calibrated seconds of one pass."""
        if rows <= 0:
            return 0.0
        return (
            float(self.base(rows))
            + self.per_sequence_s * max(0, sequences - 1)
            + self.per_context_s * context
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "rows": list(self.rows),
            "seconds": list(self.seconds),
            "per_sequence_s": self.per_sequence_s,
            "per_context_s": self.per_context_s,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the curve of plain values.

        Raises:
            ConfigError: they are none.
        """
        try:
            return cls(
                tuple(int(n) for n in value["rows"]),
                tuple(float(s) for s in value["seconds"]),
                float(value["per_sequence_s"]),
                float(value["per_context_s"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                given=f"step costs that cannot be read ({type(error).__name__}: {error})",
                expected="rows, seconds, per_sequence_s and per_context_s",
                remedy="Calibrate again with `paceline calibrate`",
            ) from None


class OnlineCurve:
    """A calibrated curve that follows what passes really take.

    Args:
        curve: the calibration, or a guess.
        is_guess: whether nothing was measured: its level may be anything, and its shape is less sure.
    """

    def __init__(self, curve: CostCurve, *, is_guess: bool = False) -> None:
        self.curve = curve
        self._speed_sd = GUESSED_SPEED_SD if is_guess else SPEED_SD
        shape_sd, length = (GUESSED_SHAPE_SD, GUESSED_SHAPE_LENGTH) if is_guess else (SHAPE_SD, SHAPE_LENGTH)
        distance = np.log2(GRID)[:, None] - np.log2(GRID)[None, :]
        prior = shape_sd**2 * np.exp(-0.5 * (distance / length) ** 2)
        size = len(GRID) + 1
        self._prior = np.zeros((size, size))
        self._prior[0, 0] = self._speed_sd**2
        self._prior[1:, 1:] = prior
        self._covariance = self._prior.copy()
        self._state = np.zeros(size)
        self._noise = 0.05**2
        self._dense_base = curve.base(np.arange(MAX_ROWS + 1))
        self._base_list: list[float] = self._dense_base.tolist()
        self._mix = _INTERPOLATION
        self._step = np.empty((size, size))
        self._table = self._dense_base.copy()
        self._num_valid = MAX_ROWS + 1
        self.num_observed = 0
        self.errors: list[float] = []
        """|predicted / measured - 1| of the latest passes, as predicted before each."""

    @property
    def speed(self) -> float:
        """What passes take now / what was calibrated, all numbers of rows alike."""
        return math.exp(self._state.item(0))

    @property
    def median_error(self) -> float | None:
        """Median of |predicted / measured - 1| over the latest passes; none before the first."""
        return float(np.median(self.errors)) if self.errors else None

    def follow(self, other: OnlineCurve) -> None:
        """Take another curve's speed for this one's, which nothing was seen of yet."""
        if not self.num_observed:
            self._state[0] = other._state[0]
            self._num_valid = 0

    def table(self, size: int = MAX_ROWS + 1) -> np.ndarray:
        """Return corrected base seconds at 0 .. size - 1 rows; to be read, not changed."""
        size = min(size, MAX_ROWS + 1)
        if self._num_valid < size:
            # Few rows are asked for as a rule, and the rest is not worth computing in every step.
            size = min(MAX_ROWS + 1, max(size, LEAST_TABLE))
            corrections = np.exp(self._state[0] + self._mix[:size] @ self._state[1:])
            np.multiply(self._dense_base[:size], corrections, out=self._table[:size])
            self._num_valid = size
        return self._table[:size]

    def extra(self, sequences: int, context: float) -> float:
        """Return the seconds that sequences and context add to any number of rows."""
        added = self.curve.per_sequence_s * max(0, sequences - 1) + self.curve.per_context_s * context
        return added * self.speed

    def seconds(self, rows: float, sequences: int = 1, context: float = 0.0) -> float:
        """Return what one pass takes now, an estimate."""
        if rows <= 0:
            return 0.0
        if isinstance(rows, int) and rows <= MAX_ROWS and self._num_valid <= rows:
            return self._at(rows) + self.extra(sequences, context)
        table = self.table(int(rows) + 2)
        low = min(int(rows), MAX_ROWS)
        if rows > MAX_ROWS:
            base = float(self.curve.base(rows)) * float(table[MAX_ROWS] / self._dense_base[MAX_ROWS])
        else:
            high = min(low + 1, MAX_ROWS)
            base = float(table[low] + (rows - low) * (table[high] - table[low]))
        return base + self.extra(sequences, context)

    def _at(self, rows: int) -> float:
        """Return one value of the table, which need not be made for it."""
        state, above = self._state, _ABOVE[rows]
        part = _PARTS[rows]
        # The state is the speed and then the grid, so that point i of that stands at i + 1.
        shape = (1.0 - part) * state.item(above) + part * state.item(above + 1)
        return self._base_list[rows] * math.exp(state.item(0) + shape)

    def _calibrated_s(self, rows: int, sequences: int, context: float) -> float:
        if rows > MAX_ROWS:
            return self.curve.seconds_of(rows, sequences, context)
        curve = self.curve
        added = curve.per_sequence_s * max(0, sequences - 1) + curve.per_context_s * context
        return self._base_list[max(0, rows)] + added

    def observe(self, passes: Sequence[tuple[int, int, float]], seconds: float) -> None:
        """Learn from passes that took so long together.

        Args:
            passes: (rows, sequences, context) of each.
            seconds: their sum; what is not positive is ignored.
        """
        if not passes or not seconds > 0 or not math.isfinite(seconds):
            return
        calibrated = [self._calibrated_s(*one) for one in passes]
        total = sum(calibrated)
        if total <= 0:
            return
        # A pass over so many rows says so much of the speed and of the shape at each point of the grid.
        places = [max(1, min(rows, MAX_ROWS)) for rows, _, _ in passes]
        design = _DESIGN[places[0]]
        if len(places) > 1:
            design = (np.array(calibrated) / total).dot(_DESIGN[places])
        self._update(design, math.log(seconds / total))

    def _update(self, design: np.ndarray, observed: float) -> None:
        covariance = self._covariance
        if self.num_observed % 64 == 63:
            kept = 1 - 64 * FORGETTING
            covariance *= kept
            covariance += (1 - kept) * self._prior
            self._state[1:] *= kept
        covariance[0, 0] = min(covariance.item(0) + WALK_SD**2, self._speed_sd**2)
        # Arrays of this size take as long to be asked as to be computed, and `dot` asks for the least.
        spread = covariance.dot(design)
        innovation = observed - float(self._state.dot(design))
        self.errors.append(abs(math.expm1(-max(-20.0, min(20.0, innovation)))))
        del self.errors[:-256]
        explained = float(design.dot(spread))
        variance = explained + self._noise
        limit = HUBER * math.sqrt(variance)
        clipped = max(-limit, min(limit, innovation))
        # The noise is what innovations have beyond what the state's own uncertainty explains.
        seen = max(LEAST_NOISE**2, min(clipped**2, 4 * variance) - explained)
        self._noise += 0.03 * (seen - self._noise)
        gain = spread / variance
        self._state += clipped * gain
        covariance -= np.multiply(gain[:, None], spread, out=self._step)
        self.num_observed += 1
        self._num_valid = 0


_LOG_GRID = np.log2(GRID)


def _between(max_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for 0 .. max_rows rows the point of the grid above, and the part of the way that lies behind the
    one below."""
    rows = np.log2(np.maximum(np.arange(max_rows + 1), 1))
    high = np.clip(np.searchsorted(_LOG_GRID, rows), 1, len(GRID) - 1)
    part = (rows - _LOG_GRID[high - 1]) / (_LOG_GRID[high] - _LOG_GRID[high - 1])
    return high, np.clip(part, 0.0, 1.0)


def _interpolation(high: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return the matrix [rows, grid] that spreads values at the grid over all numbers of rows."""
    matrix = np.zeros((len(high), len(GRID)))
    index = np.arange(len(high))
    matrix[index, high - 1] = 1 - part
    matrix[index, high] += part
    return matrix


_HIGH, _PART = _between(MAX_ROWS)
_ABOVE: list[int] = _HIGH.tolist()
_PARTS: list[float] = _PART.tolist()
_INTERPOLATION = _interpolation(_HIGH, _PART)
_DESIGN = np.hstack((np.ones((MAX_ROWS + 1, 1)), _INTERPOLATION))
"""[MAX_ROWS + 1, 1 + grid]: what a pass over so many rows says of the speed and of the shape."""
