"""Counts the rows that models computed, from the records of steps."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.records import GenerationResult
from paceline.step_records import StepRecord


@dataclass(slots=True)
class RowCounter:
    """An observer of an engine; its counts are read and set to zero between runs."""

    target: int = 0
    draft: int = 0

    def on_step(self, record: StepRecord) -> None:
        """Count a step's rows."""
        self.target += record.num_rows
        self.draft += sum(record.draft_rows)

    def on_finish(self, result: GenerationResult) -> None:
        """Take no note of it."""

    def take(self) -> tuple[int, int]:
        """Return the rows of target and draft model since the last call."""
        found = self.target, self.draft
        self.target = self.draft = 0
        return found
