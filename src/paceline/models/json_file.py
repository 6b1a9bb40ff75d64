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


def parse_json(text: str | bytes, where: object) -> dict[str, Any]:
    """Return the JSON object in a text; errors are as in `read_json`, and name its place as `where`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise unreadable(where, error) from None
    if not isinstance(value, dict):
        raise unreadable(where, f"a JSON {type(value).__name__} at the top")
    return value


def unreadable(where: object, error: object) -> ModelFileError:
    """Return the error for a place that does not hold what it should."""
    return ModelFileError(
        given=f"{where} cannot be read ({error})",
        expected="the model's file as published",
        remedy="Fetch the file again",
    )
