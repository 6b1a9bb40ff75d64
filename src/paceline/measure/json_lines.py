"""Lines of JSON that people write: what is read alike of all of them, and how a mistake is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.errors import InputFileError


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines of a text that are not blank, each with its number."""
    # Not splitlines(): JSON strings may hold U+2028 and its like, which it would cut at.
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def parse_object(text: str, where: str, expected: str) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        InputFileError: it is none; the error says where, and what was expected.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refused_line(f"{where}: {error}", expected) from None
    if not isinstance(value, dict):
        raise refused_line(f"{where}: a JSON {type(value).__name__}", expected)
    return value


def label_of(value: Mapping[str, Any], key: str, where: str, expected: str) -> str | None:
    """Return a string that can be printed; none where it is absent.

    Raises:
        InputFileError: it is something else.
    """
    label = value.get(key)
    # Half a surrogate pair, which JSON can spell, cannot be printed.
    if label is not None and not (isinstance(label, str) and label.encode(errors="ignore").decode() == label):
        raise refused_line(f"{where}: {key} {label!r:.60}", expected)
    return label


def refused_line(given: str, expected: str) -> InputFileError:
    """Return the error of a line."""
    return InputFileError(given=given, expected=expected, remedy="Correct that line")
