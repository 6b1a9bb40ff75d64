"""Step times by draft length, from three measured ones and, where there is one, a curve of step costs."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.planner.break_even import (
    Acceptance,
    BestLength,
    best_draft_length,
    break_even_acceptance,
    speedup,
    tokens_per_step,
)
from paceline.policy.costs import CostCurve


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a step of one batch takes, seconds, with and without drafts."""

    draft_s: float
    """Of drafting all k tokens; in proportion to k."""
    verify_s: float
    """Of the target's pass with k drafts for each sequence."""
    plain_s: float
    """Of a step without drafts."""
    draft_length: int
    """k, that the first two were taken at."""
    curve: CostCurve | None = None
    """How verification grows with rows; its level is that of `verify_s`. None is as long for any k."""

    def __post_init__(self) -> None:
        if self.draft_length < 1:
            raise ConfigError(
                given=f"k = {self.draft_length}",
                expected="the draft length that the times were taken at, 1 or more",
                remedy="Give --k a length of at least 1",
            )
        for name in ("draft_s", "verify_s", "plain_s"):
            value = getattr(self, name)
            if not 0 <= value < float("inf") or (value == 0 and name != "draft_s"):
                raise ConfigError(
                    given=f"{name.removesuffix('_s')} time of {1e3 * value:g} ms",
                    expected="a positive time"
                    if name != "draft_s"
                    else "a time, 0 for a look-up that costs none",
                    remedy="Correct it",
                )

    def step_s(self, draft_length: int) -> float:
        """Return the seconds of a step with so many drafts for each sequence."""
        return self.draft_s * draft_length / self.draft_length + self.verify_s * self._growth(draft_length)

    def _growth(self, draft_length: int) -> float:
        if self.curve is None:
            return 1.0
        return self.curve.seconds_of(draft_length + 1) / self.curve.seconds_of(self.draft_length + 1)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """What one draft length comes to."""

    tokens_per_step: float
    """Emitted, the target's own token counted."""
    speedup: float
    break_even_acceptance: float | None
    """Independent acceptance at which nothing is gained; None where even all drafts accepted would not do."""
    best: BestLength | None
    """None where acceptance is not known at other draft lengths."""


def from_acceptance(times: StepTimes, acceptance: Acceptance) -> BreakEven:
    """Return what an acceptance comes to, independent or by position.

    Raises:
        ConfigError: as `break_even.survival`.
    """
    k = times.draft_length
    return _break_even(
        times, tokens_per_step(acceptance, k), best_draft_length(acceptance, times.step_s, times.plain_s)
    )


def from_tokens(times: StepTimes, tokens: float) -> BreakEven:
    """Return what counted tokens per step come to; the best length cannot be told from them.

    Raises:
        ConfigError: k drafts cannot emit so many.
    """
    if not 1.0 <= tokens <= times.draft_length + 1:
        raise ConfigError(
            given=f"{tokens:g} tokens per step at k = {times.draft_length}",
            expected=f"1 to {times.draft_length + 1}: the target's own token, and at most every draft",
            remedy="Count the target's own token, and give the k that the figure belongs to",
        )
    return _break_even(times, tokens, None)


def _break_even(times: StepTimes, tokens: float, best: BestLength | None) -> BreakEven:
    step_s = times.step_s(times.draft_length)
    return BreakEven(
        tokens,
        speedup(tokens, step_s, times.plain_s),
        break_even_acceptance(times.draft_length, step_s, times.plain_s),
        best,
    )
