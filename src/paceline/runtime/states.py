"""Where a runtime stands, and how its end went."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class RuntimeState(enum.Enum):
    """Whether requests are taken."""

    NEW = "new"
    """Not started; `start` does it."""
    RUNNING = "running"
    """Takes requests; `drain` and `shutdown` end that."""
    DRAINING = "draining"
    """Finishes what it has; `resume` takes requests again."""
    STOPPED = "stopped"
    """The engine's thread has ended, or was left behind in a step; nothing brings it back."""


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """How a shutdown went."""

    num_finished: int
    """Requests that came to their own end after it began."""
    num_ended: int
    """Requests that it ended at the deadline, each with a `ShutDownError`."""
    is_clean: bool
    """Whether the engine's thread has ended; if not, it is inside a step that does not."""
