"""Reading the JSON files of a model folder, which come from anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.errors import ModelFileError


def read_text(path: Path) -> str:
    """Return a text file of a model.

    Raises:
        ModelFileError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file; empty where there is no such file.

    Raises:
        ModelFileError: the file is no JSON object.
    """
    return parse_json(read_text(path), path) if path.exists() else {}


def parse_json(text: str | bytes, where: object, *, has_unique_keys: bool = False) -> dict[str, Any]:
    """Return the JSON object in a text; errors are as in `read_json`, and name its place as `where`.

    Args:
        text: of the object.
        where: its place.
        has_unique_keys: whether a key given twice, of which JSON takes the last, is an error too.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique if has_unique_keys else None)
    except (ValueError, RecursionError) as error:
        raise unreadable(where, error) from None
    if not isinstance(value, dict):
        raise unreadable(where, f"a JSON {type(value).__name__} at the top")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"key {key!r} twice")
        values[key] = value
    return values


def unreadable(where: object, error: object) -> ModelFileError:
    """Return the error for a place that does not hold what it should."""
    return ModelFileError(
        given=f"{where} cannot be read ({error})",
        expected="the model's file as published",
        remedy="Fetch the file again",
    )
