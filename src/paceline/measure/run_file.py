"""Runs of `paceline bench regret` in a file, so that a measurement can go on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.measure.regret import Run, Slice

VERSION = 2
"""Of the file; 1 had whole runs, without slices, and said nothing of a version."""


class RunFile:
    """Runs as lines of JSON, the first line saying what they are runs of.

    Args:
        path: the file, made if it is not there; none keeps nothing.
        what: all that runs depend on.

    Raises:
        ConfigError: the file has runs of something else or whole runs, or cannot be read.
    """

    def __init__(self, path: Path | None, what: Mapping[str, Any]) -> None:
        self._path = path
        self.runs: list[Run] = []
        if path is None:
            return
        if not path.exists():
            self._append([{"regret": dict(what), "version": VERSION}])
            return
        try:
            lines = [
                json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
            ]
            header, version = lines[0]["regret"], lines[0].get("version", 1)
            if version != VERSION:
                raise _refuse_version(path, version)
            found = [_run(line) for line in lines[1:]]
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ConfigError(
                given=f"--resume {path} ({type(error).__name__}: {error})",
                expected="a file that an earlier run of this command wrote",
                remedy="Give another path, or remove the file",
            ) from None
        wanted = json.loads(json.dumps(dict(what)))
        if header != wanted:
            different = [key for key in {*header, *wanted} if header.get(key) != wanted.get(key)]
            raise ConfigError(
                given=f"--resume {path}, whose runs have another {', '.join(sorted(different))}",
                expected="runs of the same models, input and settings",
                remedy="Give another path, or the options of then",
            )
        self._take(found)

    def has(self, route: str, concurrency: int, settings: Iterable[str], repeat: int) -> bool:
        """Whether the runs of all these settings are there already: slices that were made apart from one
        another are not compared, so that a missing one has all made again."""
        there = {_key(run) for run in self.runs}
        return all((route, concurrency, setting, repeat) in there for setting in settings)

    def add(self, runs: Sequence[Run]) -> None:
        """Keep the runs of a repeat of a cell, which belong together, instead of earlier ones of the same."""
        self._take(runs)
        self._append([asdict(run) for run in runs])

    def _take(self, runs: Sequence[Run]) -> None:
        by_key = {_key(run): run for run in (*self.runs, *runs)}
        self.runs = list(by_key.values())

    def _append(self, values: Sequence[Mapping[str, Any]]) -> None:
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(value) + "\n" for value in values))
            file.flush()


def _key(run: Run) -> tuple[str, int, str, int]:
    return run.route, run.concurrency, run.setting, run.repeat


def _run(line: Mapping[str, Any]) -> Run:
    return Run(**{**line, "slices": tuple(Slice(**one) for one in line["slices"])})


def _refuse_version(path: Path, version: object) -> ConfigError:
    return ConfigError(
        given=f"--resume {path}, whose runs are of version {version}",
        expected=f"version {VERSION}, runs that are cut into slices",
        remedy="Give another path: settings are compared slice by slice, which runs of other versions do not "
        "keep",
    )
