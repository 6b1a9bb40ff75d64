"""Decisions as lines of JSON in a file that only grows, until it is turned over."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from paceline.policy.states import Decision

log = logging.getLogger(__name__)

NUM_RECENT = 256
MAX_BYTES = 10_000_000
NUM_OLD_FILES = 3

DecisionListener = Callable[[Decision], None]


class DecisionLog:
    """Keeps the latest decisions at hand, writes all of them, and tells whoever listens.

    Args:
        path: file to append to; none keeps them in memory only.
        max_bytes: size from which on the file is renamed to `NAME.1` (and that to `NAME.2`, ...).
        num_old_files: how many renamed files are kept.
        wall_clock: seconds since 1970, written beside the engine's own clock.

    A file that cannot be written is logged once; serving goes on.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        num_old_files: int = NUM_OLD_FILES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.recent: deque[Decision] = deque(maxlen=NUM_RECENT)
        self._max_bytes = max_bytes
        self._num_old_files = num_old_files
        self._wall_clock = wall_clock
        self._listeners: list[DecisionListener] = []
        self._has_failed = False

    def add_listener(self, listener: DecisionListener) -> None:
        """Tell a listener of each decision from now on, on the thread that decides."""
        self._listeners.append(listener)

    def of(self, route: str) -> list[Decision]:
        """Return the latest decisions of a route, oldest first."""
        return [decision for decision in self.recent if decision.route == route]

    def add(self, decision: Decision) -> None:
        """Record a decision."""
        self.recent.append(decision)
        log.info("route %s: %s", decision.route, decision.sentence)
        if self.path is not None:
            self._write(self.path, decision)
        for listener in tuple(self._listeners):
            try:
                listener(decision)
            except Exception:
                log.exception("a listener to decisions failed; serving goes on")

    def _write(self, path: Path, decision: Decision) -> None:
        line = json.dumps({"time": self._wall_clock(), **decision.to_json()}, ensure_ascii=False) + "\n"
        try:
            if path.exists() and path.stat().st_size + len(line.encode()) > self._max_bytes:
                self._turn_over(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            # One write of a whole line, so that a process that dies leaves no half one behind others.
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
        except OSError:
            if not self._has_failed:
                log.exception("the decision log %s cannot be written; this is not said again", path)
            self._has_failed = True

    def _turn_over(self, path: Path) -> None:
        for number in range(self._num_old_files, 0, -1):
            source = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            if source.exists():
                source.replace(path.with_name(f"{path.name}.{number}"))
        if self._num_old_files == 0:
            path.unlink()
