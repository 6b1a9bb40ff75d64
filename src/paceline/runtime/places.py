"""How many sequences may be in the engine or wait for it, and when a place is likely to be free."""

from __future__ import annotations

from paceline.clock import Clock
from paceline.errors import BusyError, InvalidParameterError

_WEIGHT = 0.2
"""Of the newest interval in the moving average."""


class Places:
    """Counts places; refuses when there are none left."""

    def __init__(self, num_places: int, clock: Clock) -> None:
        self._num_places = num_places
        self._clock = clock
        self._finished_at: float | None = None
        self._interval_s: float | None = None
        self.num_taken = 0

    def take(self, count: int) -> None:
        """Take this many places, all or none.

        Raises:
            BusyError: not so many are free now.
            InvalidParameterError: there are not so many.
        """
        if count > self._num_places:
            raise InvalidParameterError(
                given=f"n = {count}",
                expected=f"at most {self._num_places}, the sequences that may run and wait here",
                remedy="Ask for fewer choices, or raise the limits of the queue",
            )
        missing = self.num_taken + count - self._num_places
        if missing > 0:
            raise BusyError(
                given=f"{count} more where {self.num_taken} run or wait",
                expected=f"at most {self._num_places} at a time",
                remedy="Try again later",
                retry_after_s=None if self._interval_s is None else self._interval_s * missing,
            )
        self.num_taken += count

    def give_back(self, count: int, *, has_finished: bool = False) -> None:
        """Give places back; `has_finished` tells sequences that came to their end from dropped ones."""
        self.num_taken -= count
        if not has_finished:
            return
        now = self._clock()
        if self._finished_at is not None:
            interval = now - self._finished_at
            before = interval if self._interval_s is None else self._interval_s
            self._interval_s = before + _WEIGHT * (interval - before)
        self._finished_at = now
