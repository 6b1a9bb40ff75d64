"""Run-time changes of routes, kept in SQLite beside the configuration, so that they outlive the process."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS overlay (
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    by TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (route, key)
)
"""


@dataclass(frozen=True, slots=True)
class OverlayEntry:
    """One key of one route, as somebody set it."""

    value: Any
    by: str
    at: float
    """Seconds since 1970."""


class OverlayStore:
    """Keys of routes that were set at run time.

    Args:
        path: the database, made where it is not there; none keeps them in memory, to be lost at the end.

    Raises:
        ConfigError: the file is no such database, or cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            _make_private(path)
        try:
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False)
            # Each change is on the disk before it is confirmed, whatever happens to the process.
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_SCHEMA)
            self._db.commit()
        except sqlite3.Error as error:
            raise ConfigError(
                given=f"{path}: {error}",
                expected="a database of route changes, or a place for one",
                remedy="Move that file away, or make its folder writable",
            ) from None

    def read(self) -> dict[str, dict[str, OverlayEntry]]:
        """Return all entries by route and key."""
        found: dict[str, dict[str, OverlayEntry]] = {}
        for route, key, value, by, at in self._db.execute("SELECT route, key, value, by, at FROM overlay"):
            found.setdefault(route, {})[key] = OverlayEntry(json.loads(value), by, at)
        return found

    def put(self, route: str, values: Mapping[str, Any], by: str) -> None:
        """Set keys of a route, all or none."""
        now = time.time()
        rows = [(route, key, json.dumps(value), by, now) for key, value in values.items()]
        with self._writing():
            self._db.executemany("INSERT OR REPLACE INTO overlay VALUES (?, ?, ?, ?, ?)", rows)

    def clear(self, route: str) -> None:
        """Forget all keys of a route."""
        with self._writing():
            self._db.execute("DELETE FROM overlay WHERE route = ?", (route,))

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._db:
                yield
        except sqlite3.Error as error:
            raise ConfigError(
                given=f"a change of a route that {self.path} could not keep: {error}",
                expected="a file that can be written",
                remedy="Look at the disk and the file's mode, and try again; nothing was changed",
            ) from None


def _make_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise ConfigError(
            given=f"{path}: {error.strerror}",
            expected="a file that can be written, for changes of routes at run time",
            remedy="Make the folder of the configuration writable, or set server.state_path to another place",
        ) from None
