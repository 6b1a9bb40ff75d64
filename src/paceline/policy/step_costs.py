"""The costs of a whole step, from its records: the target's pass, draft passes, look-ups, and what is around
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from paceline.errors import ConfigError
from paceline.policy.costs import CostCurve, OnlineCurve
from paceline.step_records import StepRecord

SCHEMA = 1
GUESSED_TARGET = CostCurve.of({1: 0.05, 4: 0.055, 8: 0.075, 16: 0.12, 64: 0.4})
GUESSED_DRAFT = CostCurve.of({1: 0.01, 4: 0.011, 8: 0.015, 16: 0.024, 64: 0.08})
"""Where nothing was calibrated: a machine that waits for memory up to a few rows. Steps soon say better."""
LOOKUP_S = 50e-6
PREFILL_ROWS = 128
"""Rows of a draft model's pass over a prompt."""
CONTEXT_STEP = 64
"""Contexts are told apart to so many positions, so that equal steps have equal costs."""


@dataclass(frozen=True, slots=True)
class CalibratedCosts:
    """What calibration found, for one pair of models on one machine."""

    target: CostCurve
    drafts: Mapping[str, CostCurve] = field(default_factory=dict)
    """By name of the drafter."""
    key: str = ""
    """Of models, machine and threads."""
    description: Mapping[str, str] = field(default_factory=dict)
    """The same in words."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, with the version of this form."""
        return {
            "schema": SCHEMA,
            "key": self.key,
            "description": dict(self.description),
            "target": self.target.to_json(),
            "drafts": {name: curve.to_json() for name, curve in self.drafts.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the costs of plain values.

        Raises:
            ConfigError: they are none, or of another version of this form.
        """
        if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
            found = value.get("schema") if isinstance(value, Mapping) else type(value).__name__
            raise ConfigError(
                given=f"step costs of schema {found!r}",
                expected=f"schema {SCHEMA}",
                remedy="Calibrate again with `paceline calibrate`",
            )
        return cls(
            CostCurve.from_json(value["target"]),
            {str(name): CostCurve.from_json(curve) for name, curve in value.get("drafts", {}).items()},
            str(value.get("key", "")),
            {str(k): str(v) for k, v in value.get("description", {}).items()},
        )


class _Line:
    """offset + slope x, by least squares with forgetting, in units of its own typical size."""

    def __init__(self, offset: float, slope: float, memory: float = 300.0) -> None:
        self.offset, self.slope = offset, slope
        self._keep = 1 - 1 / memory
        # Begins with a few made-up observations of the first guess.
        self._n, self._x, self._xx = 4.0, 16.0, 84.0
        self._y = 4 * offset + 16 * slope
        self._xy = 16 * offset + 84 * slope

    def observe(self, x: float, y: float) -> None:
        limit = 4 * max(self.at(x), 1e-6)
        y, keep = min(y, limit), self._keep
        self._n = self._n * keep + 1
        self._x = self._x * keep + x
        self._xx = self._xx * keep + x * x
        self._y = self._y * keep + y
        self._xy = self._xy * keep + x * y
        spread = self._n * self._xx - self._x**2
        # Where x never varies the line's slope is kept and its offset follows.
        if spread > 1e-3 * self._n * self._xx:
            self.slope = max(0.0, (self._n * self._xy - self._x * self._y) / spread)
        self.offset = max(0.0, (self._y - self.slope * self._x) / self._n)

    def at(self, x: float) -> float:
        return self.offset + self.slope * x


class StepCosts:
    """What steps cost now. Begins with a calibration, or with a guess where there is none.

    Args:
        calibrated: what was measured at start; none guesses, and says so (`is_guess`).
    """

    def __init__(self, calibrated: CalibratedCosts | None = None) -> None:
        self.is_guess = calibrated is None
        self.calibrated = calibrated or CalibratedCosts(GUESSED_TARGET, {"model": GUESSED_DRAFT})
        self.target = OnlineCurve(self.calibrated.target, is_guess=self.is_guess)
        self.drafts = {
            name: OnlineCurve(curve, is_guess=self.is_guess) for name, curve in self.calibrated.drafts.items()
        }
        self._overhead = _Line(0.0, 0.0)
        self.lookup_s = LOOKUP_S
        """Seconds of looking one sequence up for a suffix match."""
        self.errors: list[float] = []
        """|predicted / measured - 1| of the latest whole steps."""

    def draft(self, name: str) -> OnlineCurve:
        """Return the curve of a drafter's forward passes."""
        if name not in self.drafts:
            self.drafts[name] = OnlineCurve(GUESSED_DRAFT, is_guess=True)
        return self.drafts[name]

    def plain_s(self, sequences: int, context: float, prompt_rows: int = 0) -> float:
        """Return the seconds of a step in which nobody drafts, an estimate."""
        rows = sequences + prompt_rows
        return self.target.seconds(rows, sequences, _rounded(context)) + self._overhead.at(sequences)

    def step_s(self, rows: int, sequences: int, context: float) -> float:
        """Return the seconds of a step without drafts over so many rows, prompts' among them, an estimate."""
        return self.target.seconds(rows, sequences, _rounded(context)) + self._overhead.at(sequences)

    def verify_table(self, sequences: int, context: float, base_rows: int, most: int) -> np.ndarray:
        """Return seconds [most + 1] of a step with 0 .. most draft rows beside `base_rows`, without
        drafting."""
        table = self.target.table(base_rows + most + 1)
        fixed = self.target.extra(sequences, _rounded(context)) + self._overhead.offset
        if base_rows + most < len(table):
            found: np.ndarray = table[base_rows : base_rows + most + 1] + fixed
        else:
            rows = np.arange(base_rows, base_rows + most + 1)
            found = table[np.minimum(rows, len(table) - 1)] + fixed
        found += self._overhead.slope * np.arange(sequences, sequences + most + 1)
        return found

    def catch_up_s(self, name: str, num_tokens: int) -> float:
        """Return the seconds of computing tokens that a draft model lacks, chunk by chunk."""
        curve = self.draft(name)
        full, rest = divmod(max(0, num_tokens), PREFILL_ROWS)
        return full * curve.seconds(PREFILL_ROWS) + curve.seconds(rest)

    def observe(self, record: StepRecord, draft_name: str = "model") -> None:
        """Learn from a step's record."""
        parts = record.sequences
        if not parts:
            return
        self.observe_sums(
            record,
            draft_name,
            rows=record.num_rows,
            context=sum(part.num_context_tokens for part in parts),
            num_asked=sum(part.draft_length > 0 for part in parts),
            has_prompts=any(not part.is_decoding for part in parts),
        )

    def observe_sums(
        self,
        record: StepRecord,
        draft_name: str,
        *,
        rows: int,
        context: float,
        num_asked: int,
        has_prompts: bool,
    ) -> None:
        """Do what `observe` does, for a step of some sequences whose sums are known.

        Args:
            record: the step.
            draft_name: what the only draft model is called.
            rows: of the target's pass.
            context: positions before them, of all sequences.
            num_asked: sequences that were to draft.
            has_prompts: whether prompts took part.
        """
        num, context = len(record.sequences), _rounded(context)
        if not has_prompts:
            predicted = self.target.seconds(rows, num, context) + self._overhead.at(rows)
            for passes in record.passes_by_model(draft_name):
                curve = self.draft(passes.model)
                predicted += sum([curve.seconds(n) for n in passes.rows])
            if record.duration_s > 0:
                self.errors.append(abs(predicted / record.duration_s - 1))
                del self.errors[:-512]
            self._overhead.observe(rows, record.plan_s + record.commit_s)
        self.target.observe([(rows, num, context)], record.verify_s)
        if self.is_guess:
            # Of a machine that is not known, the draft model's speed is told first by the target's.
            for curve in self.drafts.values():
                curve.follow(self.target)
        if record.draft_rows:
            for passes in record.passes_by_model(draft_name):
                self.draft(passes.model).observe([(n, 1, 0.0) for n in passes.rows], passes.seconds)
        elif record.draft_s > 0 and num_asked:
            each = min(record.draft_s / num_asked, 10 * self.lookup_s)
            self.lookup_s += 0.05 * (each - self.lookup_s)

    @property
    def median_error(self) -> float | None:
        """Median of |predicted / measured - 1| over the latest steps without prompts; none before any."""
        return float(np.median(self.errors)) if self.errors else None


def _rounded(context: float) -> float:
    return round(context / CONTEXT_STEP) * CONTEXT_STEP
