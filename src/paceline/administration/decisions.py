"""The latest decisions with the time of day, those from before the last start included."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.policy.states import Decision

log = logging.getLogger(__name__)

NUM_KEPT = 1000
TAIL_BYTES = 1_000_000


class DecisionHistory:
    """What was decided about routes, oldest first.

    Args:
        path: the decision log, whose end is read; none begins empty.
        wall_clock: seconds since 1970.
    """

    def __init__(self, path: Path | None, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._entries: deque[dict[str, Any]] = deque(maxlen=NUM_KEPT)
        if path is not None:
            self._entries.extend(_tail(path))

    def add(self, decision: Decision) -> None:
        """Take a decision in, on the thread that decides."""
        self._entries.append({"time": self._wall_clock(), **decision.to_json()})

    def of(self, route: str | None = None, limit: int = NUM_KEPT) -> list[dict[str, Any]]:
        """Return the latest decisions, of one route or of all, oldest first."""
        found = [one for one in self._entries.copy() if route is None or one.get("route") == route]
        return found[-limit:]


def _tail(path: Path) -> list[dict[str, Any]]:
    """Return what can be read at the end of a log; half a line, as a crash may leave it, is left out."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("earlier decisions cannot be read from %s: %s", path, error.strerror)
        return []
    entries = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "route" in entry:
            entries.append(entry)
    return entries
