from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.input_file import read_requests
from paceline.errors import InputFileError


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_messages_and_prompts(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"id": "a", "route": "chat", "category": "x", "messages": [{"role": "user", "content": "Hi"}]}',
        "",
        '{"prompt": "Once"}',
    )
    first, second = read_requests(path)
    assert (first.id, first.route, first.prompt) == ("a", "chat", None)
    assert first.messages == ({"role": "user", "content": "Hi"},)
    assert (second.id, second.route, second.prompt, second.messages) == ("line-3", None, "Once", None)
    assert [r.id for r in read_requests(path, limit=1)] == ["a"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: Expecting"),
        ("[1]", "line 1: a JSON list"),
        ('{"text": "x"}', r"keys \['text'\]"),
        ('{"prompt": "x", "messages": []}', "keys"),
        ('{"prompt": "x", "route": 3}', "route 3"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputFileError, match=message):
        read_requests(write(tmp_path, line))


def test_missing_empty_and_doubled(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="nowhere"):
        read_requests(tmp_path / "nowhere.jsonl")
    with pytest.raises(InputFileError, match="no requests"):
        read_requests(write(tmp_path, ""))
    with pytest.raises(InputFileError, match="'a' twice"):
        read_requests(write(tmp_path, '{"id": "a", "prompt": "x"}', '{"id": "a", "prompt": "y"}'))
