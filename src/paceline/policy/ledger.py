"""What looking for something better may cost: a share of the time, never more, averaged over a thousand
steps."""

from __future__ import annotations

HORIZON_STEPS = 1000
EARNED_PART = 0.6
"""Of the share: what a step earns. The rest is what may be saved up."""


class Ledger:
    """Seconds that were earned by serving and lost by trying.

    A token bucket: part of the share is earned step by step, and the rest of it may have been saved up, so
    that the loss of no thousand steps in a row is more than the share of their time.

    Args:
        share: of the time that may be lost.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.credit_s = 0.0
        self.lost_s = 0.0
        """Net, since the beginning."""
        self._step_s = 0.0

    def earn(self, step_s: float) -> None:
        """Let a step that was served count. Unused credit is kept for a thousand steps' worth, no longer."""
        self._step_s += 0.02 * (step_s - self._step_s) if self._step_s else step_s
        self.credit_s = min(
            self.credit_s + EARNED_PART * self.share * step_s,
            (1 - EARNED_PART) * self.share * HORIZON_STEPS * self._step_s,
        )

    def can_spend(self, seconds: float) -> bool:
        """Whether so much may be lost now."""
        return self.share > 0 and self.credit_s >= seconds

    def spend(self, seconds: float) -> None:
        """Take note of a loss; a gain counts against losses."""
        self.credit_s -= seconds
        self.lost_s += seconds
