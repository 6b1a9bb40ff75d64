"""A listener for downloads that remembers what it was told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class RecordingProgress:
    """Keeps the lines and, for each label, the bytes counted."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bytes: dict[str, int] = {}
        self.notes: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def say(self, line: str) -> None:
        self.lines.append(line)

    @contextmanager
    def track(self, label: str, total: int, done: int = 0) -> Iterator[_Counter]:
        self.bytes[label] = done
        yield _Counter(self, label)


class _Counter:
    def __init__(self, progress: RecordingProgress, label: str) -> None:
        self._progress, self._label = progress, label

    def advance(self, num_bytes: int) -> None:
        self._progress.bytes[self._label] += num_bytes

    def note(self, text: str) -> None:
        self._progress.notes.append(text)
