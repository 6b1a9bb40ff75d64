"""Files of requests: one JSON object a line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InputFileError
from paceline.measure.json_lines import label_of, numbered_lines, parse_object, refused_line

EXPECTED = '{"messages": [...]} or {"prompt": "..."}, with "id" and "route" as strings if given'


@dataclass(frozen=True, slots=True)
class InputRequest:
    """One line: a conversation or a raw prompt, with the name and the route it came with."""

    id: str
    route: str | None
    messages: tuple[dict[str, Any], ...] | None = None
    prompt: str | None = None


def read_requests(path: Path, limit: int | None = None) -> list[InputRequest]:
    """Return the requests of a file, at most `limit` of them.

    A line has `messages` (OpenAI's chat form) or `prompt` (text), and may have `id` and `route`; other keys
    are for other readers. Blank lines are passed over.

    Raises:
        InputFileError: no such file, or a line that is not such an object; it names the line.
    """
    numbered = numbered_lines(read_text(path, "a readable UTF-8 file with one JSON object a line"))[:limit]
    requests = [_parse(text, path, number) for number, text in numbered]
    if not requests:
        raise InputFileError(
            given=f"{path}: no requests", expected="at least one line", remedy="Add a line, or raise --limit"
        )
    _check_ids(requests, path)
    return requests


def read_text(path: Path, expected: str) -> str:
    """Return the text of a file that the command line named.

    Raises:
        InputFileError: it cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(
            given=f"input file {str(path)!r}: {error}",
            expected=expected,
            remedy="Check the path and the file's encoding",
        ) from None


def _parse(text: str, path: Path, number: int) -> InputRequest:
    where = f"{path}, line {number}"
    value = parse_object(text, where, EXPECTED)
    messages, prompt = value.get("messages"), value.get("prompt")
    if (messages is None) == (prompt is None):
        raise _refuse(f"{where}: an object with keys {sorted(value)}")
    if messages is not None and not isinstance(messages, list):
        raise _refuse(f"{where}: messages {messages!r:.60}")
    if prompt is not None and not isinstance(prompt, str):
        raise _refuse(f"{where}: prompt {prompt!r:.60}")
    return InputRequest(
        id=label_of(value, "id", where, EXPECTED) or f"line-{number}",
        route=label_of(value, "route", where, EXPECTED),
        messages=None if messages is None else tuple(messages),
        prompt=prompt,
    )


def _refuse(given: str) -> InputFileError:
    return refused_line(given, EXPECTED)


def _check_ids(requests: list[InputRequest], path: Path) -> None:
    seen: set[str] = set()
    for request in requests:
        if request.id in seen:
            raise InputFileError(
                given=f"{path}: id {request.id!r} twice",
                expected="a different id for each line",
                remedy="Rename one of them",
            )
        seen.add(request.id)
