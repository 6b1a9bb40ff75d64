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
        ('{"prompt": "x", "messages": "y"}', "keys"),
        ('{"messages": "y"}', "messages 'y'"),
        ('{"prompt": ["y"]}', r"prompt \['y'\]"),
        ('{"prompt": "x", "id": [1]}', r"id \[1\]"),
        ('{"prompt": "x", "id": "\\ud800"}', "id "),
        ("[" * 100_000, "line 1: maximum recursion"),
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


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_line_ends_at_a_newline_only(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(f'{{"prompt": "a{separator}b"}}\r\n{{"prompt": "c", "id": null}}\n', "utf-8")
    assert [(r.id, r.prompt) for r in read_requests(path)] == [("line-1", f"a{separator}b"), ("line-2", "c")]


def test_lines_beyond_the_limit_are_not_looked_at(tmp_path: Path) -> None:
    assert len(read_requests(write(tmp_path, '{"prompt": "x"}', "nonsense"), limit=1)) == 1
