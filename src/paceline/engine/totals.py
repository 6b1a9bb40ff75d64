"""Where the time of the engine's steps went, added up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from paceline.clock import Clock


@dataclass(slots=True)
class StepTotals:
    """Sums over steps."""

    num_steps: int = 0
    step_s: float = 0.0
    """Whole steps, from planning to what callers get."""
    draft_s: float = 0.0
    """Of these, in drafters."""
    verify_s: float = 0.0
    """Of these, in the target's forward pass."""

    @property
    def overhead_s(self) -> float:
        """Seconds that neither the target nor a drafter took: planning, judging, committing, emitting."""
        return self.step_s - self.draft_s - self.verify_s

    def add(self, step_s: float, draft_s: float, verify_s: float) -> None:
        """Count one step."""
        self.num_steps += 1
        self.step_s += step_s
        self.draft_s += draft_s
        self.verify_s += verify_s

    def copy(self) -> StepTotals:
        """Return the sums as they are now."""
        return replace(self)

    def __sub__(self, earlier: StepTotals) -> StepTotals:
        """Return what came between two copies."""
        return StepTotals(
            self.num_steps - earlier.num_steps,
            self.step_s - earlier.step_s,
            self.draft_s - earlier.draft_s,
            self.verify_s - earlier.verify_s,
        )


@contextmanager
def timed(seconds: dict[str, float], model: str | None, clock: Clock | None) -> Iterator[None]:
    """Add the time of a block to a draft model's."""
    begin = None if clock is None or model is None else clock()
    yield
    if clock is not None and model is not None and begin is not None:
        seconds[model] = seconds.get(model, 0.0) + clock() - begin
