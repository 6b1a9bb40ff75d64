"""How a long download tells a person where it is; always on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress

from paceline.clock import Clock, monotonic

REPORT_SHARE = 0.1
REPORT_SECONDS = 1.0
"""Where there is no terminal, a line is printed each time this share of the bytes has come, if not sooner
after the last one than this."""


class Tracker(Protocol):
    """One transfer under way."""

    def advance(self, num_bytes: int) -> None:
        """Count bytes that have come; negative where bytes turned out to be of no use."""

    def note(self, text: str) -> None:
        """Say what is being worked on, for example `part 3 of 22`."""


class Progress(Protocol):
    """Whoever wants to hear about a download."""

    def say(self, line: str) -> None:
        """Tell one thing that a person should know: a source chosen, a connection broken."""

    def track(self, label: str, total: int, done: int = 0) -> AbstractContextManager[Tracker]:
        """Follow `total` bytes, of which `done` are there from an earlier try."""


class ConsoleProgress:
    """A bar on a terminal; elsewhere a line for every tenth part."""

    def __init__(self, console: Console | None = None, clock: Clock = monotonic) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock

    def say(self, line: str) -> None:
        """Print one line."""
        self._console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def track(self, label: str, total: int, done: int = 0) -> Iterator[Tracker]:
        """Show a bar, or lines, while the context lasts."""
        if not self._console.is_terminal:
            yield _Lines(self.say, label, total, done, self._clock)
            return
        bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console,
        )
        with bar:
            yield _Bar(bar, label, total, done)


class _Bar:
    def __init__(self, bar: RichProgress, label: str, total: int, done: int) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=total, completed=done, note="")

    def advance(self, num_bytes: int) -> None:
        self._bar.advance(self._task, num_bytes)

    def note(self, text: str) -> None:
        self._bar.update(self._task, note=text)


class _Lines:
    """What is over within a second is not worth a line."""

    def __init__(self, say: Callable[[str], None], label: str, total: int, done: int, clock: Clock) -> None:
        self._say, self._label, self._total, self._done, self._clock = say, label, total, done, clock
        self._reported, self._reported_at = done, clock()
        self._note = ""

    def advance(self, num_bytes: int) -> None:
        self._done += num_bytes
        due = self._done >= self._total or self._done - self._reported >= REPORT_SHARE * self._total
        if due and self._clock() - self._reported_at >= REPORT_SECONDS:
            self._reported, self._reported_at = self._done, self._clock()
            where = f" ({self._note})" if self._note else ""
            self._say(f"{self._label}: {self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB{where}")

    def note(self, text: str) -> None:
        self._note = text
