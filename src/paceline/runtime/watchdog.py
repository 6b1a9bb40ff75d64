"""Finds sequences for which nothing is computed any more, and says so, once for each stall."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from paceline.clock import Clock
from paceline.engine.engine import Engine
from paceline.step_records import Stall

log = logging.getLogger(__name__)

StallListener = Callable[[Stall], None]


class Watchdog:
    """Two looks: between steps at each sequence, and from a thread of its own at a step that does not end.

    Args:
        stall_after_s: how long without progress is a stall.
        clock: the engine's.
        listener: is told of each stall; on the engine's thread, or on the watchdog's where a step is stuck.
    """

    def __init__(self, stall_after_s: float, clock: Clock, listener: StallListener) -> None:
        self._stall_after_s = stall_after_s
        self._clock = clock
        self._listener = listener
        self._reported: set[tuple[str, int]] = set()
        self._step_began_at: float | None = None
        self._reported_step: float | None = None
        self._checked_at = clock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="paceline-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look at steps that do not end."""
        self._thread.start()

    def stop(self) -> None:
        """End; returns at once."""
        self._stopped.set()

    def begin_step(self, now: float) -> None:
        """Note that a step begins."""
        self._step_began_at = now

    def end_step(self) -> None:
        """Note that it ended."""
        self._step_began_at = None

    def check_sequences(self, engine: Engine) -> None:
        """Report sequences that steps pass over; looks only now and then. On the engine's thread."""
        now = self._clock()
        if now - self._checked_at < self._stall_after_s / 4:
            return
        self._checked_at = now
        stalls = {(stall.request_id, stall.index): stall for stall in engine.stalled(self._stall_after_s)}
        for key in stalls.keys() - self._reported:
            self._report(stalls[key])
        self._reported = set(stalls)

    def check_step(self) -> None:
        """Report a step that has not ended for too long, once. On any thread."""
        began_at = self._step_began_at
        if began_at is None or began_at == self._reported_step:
            return
        since_s = self._clock() - began_at
        if since_s >= self._stall_after_s:
            self._reported_step = began_at
            self._report(Stall("", 0, since_s, is_waiting=False, is_step_stuck=True))

    def _report(self, stall: Stall) -> None:
        if stall.is_step_stuck:
            log.error("one step of the engine has been running for %.0f s", stall.since_s)
        else:
            where = "it waits" if stall.is_waiting else "it runs, and is not served"
            log.error("request %s: nothing computed for %.0f s; %s", stall.request_id, stall.since_s, where)
        try:
            self._listener(stall)
        except Exception:
            log.exception("a listener to stalls failed")

    def _watch(self) -> None:
        while not self._stopped.wait(self._stall_after_s / 4):
            self.check_step()
