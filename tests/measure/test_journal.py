"""What a measurement keeps, so that it goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.measure.journal import Journal

WHAT = {"target": "t", "concurrency": (1, 2)}


def test_records_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "journal.jsonl"
    Journal(path, WHAT).add("answer", {"id": "a", "token_ids": (1, 2)})
    journal = Journal(path, WHAT)
    journal.add("run", {"n": 1})
    assert list(Journal(path, WHAT).of_kind("answer")) == [{"kind": "answer", "id": "a", "token_ids": [1, 2]}]
    assert [one["n"] for one in Journal(path, WHAT).of_kind("run")] == [1]


@pytest.mark.parametrize("num_bytes", [1, 7, 20])
def test_a_line_that_a_kill_cut_off_is_dropped_and_the_file_goes_on(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, WHAT)
    journal.add("run", {"n": 1})
    whole = path.stat().st_size
    journal.add("run", {"n": 2})
    with path.open("r+b") as file:
        file.truncate(whole + num_bytes)
    again = Journal(path, WHAT)
    assert [one["n"] for one in again.of_kind("run")] == [1]
    again.add("run", {"n": 3})
    assert [one["n"] for one in Journal(path, WHAT).of_kind("run")] == [1, 3]


def test_a_header_that_was_cut_off_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"meas')
    Journal(path, WHAT).add("run", {"n": 1})
    assert len(list(Journal(path, WHAT).of_kind("run"))) == 1


def test_another_measurement_is_refused_by_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path, WHAT)
    with pytest.raises(ConfigError, match="another concurrency, target; expected"):
        Journal(path, {"target": "u", "concurrency": (1,)})


@pytest.mark.parametrize("text", ["no json\n", "{}\n", '{"measure": {"form": 1}}\n[]\n'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="an earlier run of this command"):
        Journal(path, WHAT)
