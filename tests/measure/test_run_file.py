"""The file in which runs are kept, so that a measurement can go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.measure.test_regret import run

from paceline.errors import ConfigError
from paceline.measure.run_file import RunFile

WHAT = {"target": "a", "limit": 3}


def test_runs_are_kept_and_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first = RunFile(path, WHAT)
    runs = [run("off", 1, 1.5, 2.5, plain=[1.0, 2.0]), run("auto", 1, 1.0, 2.0, state="speculating")]
    first.add(runs)
    again = RunFile(path, WHAT)
    assert again.runs == runs
    assert again.has("code", 4, ["off", "auto"], 1)
    assert not again.has("code", 4, ["off", "auto"], 2)
    # Runs that were not made slice by slice with the others are not compared with them.
    assert not again.has("code", 4, ["off", "auto", "model:2"], 1)


def test_a_later_run_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    file = RunFile(path, WHAT)
    file.add([run("off", 1, 1.0)])
    file.add([run("off", 1, 2.0), run("auto", 1, 1.0)])
    assert file.runs == [run("off", 1, 2.0), run("auto", 1, 1.0)]
    assert RunFile(path, WHAT).runs == file.runs


def test_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    RunFile(path, WHAT)
    with pytest.raises(ConfigError, match="whose runs have another limit"):
        RunFile(path, {"target": "a", "limit": 4})
    path.write_text("what?\n")
    with pytest.raises(ConfigError, match="a file that an earlier run of this command wrote"):
        RunFile(path, WHAT)
    assert RunFile(None, {}).runs == []


def test_a_file_of_whole_runs_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    old = {"route": "code", "concurrency": 4, "setting": "off", "repeat": 1, "tokens_per_second": 9.0}
    path.write_text(json.dumps({"regret": WHAT}) + "\n" + json.dumps(old) + "\n")
    with pytest.raises(ConfigError) as error:
        RunFile(path, WHAT)
    assert error.value.given == f"--resume {path}, whose runs are of version 1"
    assert error.value.expected == "version 2, runs that are cut into slices"
    assert error.value.remedy.startswith("Give another path: settings are compared slice by slice")
