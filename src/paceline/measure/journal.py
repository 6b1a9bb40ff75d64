"""What a measurement has so far, as JSON lines, so that one that was stopped goes on where it was.

The first line says what it is a measurement of; every other one has a `kind`. Lines are added as soon as
something is known, and one that was cut off by a kill is dropped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError

HEADER = "measure"
FORM = 1


class Journal:
    """Records in a file, read once and then added to.

    Args:
        path: the file, made with its folder if it is not there.
        what: all that the records depend on.

    Raises:
        ConfigError: the file has records of something else, or cannot be read or written.
    """

    def __init__(self, path: Path, what: Mapping[str, Any]) -> None:
        self.path = path
        self._records: list[dict[str, Any]] = []
        header = {HEADER: {"form": FORM, **json.loads(json.dumps(dict(what)))}}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise _unusable(path, str(error)) from None
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            self._write(json.dumps(header) + "\n", "wb")
            return
        try:
            lines = [json.loads(line) for line in whole.decode("utf-8").splitlines()]
            found = lines[0][HEADER]
            self._records = [{"kind": str(line["kind"]), **line} for line in lines[1:]]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise _unusable(path, f"{type(error).__name__}: {error}") from None
        _check_same(path, found, header[HEADER])
        if len(whole) < len(data):
            os.truncate(path, len(whole))

    def of_kind(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a kind, in their order."""
        yield from (record for record in self._records if record["kind"] == kind)

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        """Keep a record, on the disk too."""
        line = json.loads(json.dumps({"kind": kind, **record}))
        self._records.append(line)
        self._write(json.dumps(line) + "\n", "ab")

    def _write(self, text: str, mode: str) -> None:
        try:
            with self.path.open(mode) as file:
                file.write(text.encode())
        except OSError as error:
            raise _unusable(self.path, str(error)) from None


def _check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    different = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
    if different:
        raise ConfigError(
            given=f"{path}, a measurement with another {', '.join(different)}",
            expected="one of the same models, traffic and settings, or none",
            remedy="Give another --output, remove that file, or give the options of then",
        )


def _unusable(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        given=f"{path} ({reason})",
        expected="a file that an earlier run of this command wrote, or can write",
        remedy="Give another --output, or remove the file",
    )
