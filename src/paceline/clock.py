"""Time as an argument, so that whatever measures time can be tested without waiting."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic time."""

    def __call__(self) -> float:
        """Return seconds from an arbitrary fixed point; never goes backwards."""


monotonic: Clock = time.perf_counter


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the current reading in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back: {seconds}")
        self._now += seconds
