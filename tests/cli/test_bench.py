"""`paceline bench step-cost` on a tiny model, alone and beside a stand-in for llama-bench."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.main import cli
from paceline.kernels import _native
from paceline.measure import step_cost as measure
from tests.tiny_models import TinyModel

FAKE = """\
#!{python}
import json, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert arguments["--n-gen"] == "0" and arguments["--n-depth"] == "40" and arguments["--output"] == "json"
repeats = int(arguments["--repetitions"])
tests = [
    {{"n_prompt": int(n), "samples_ns": [int(n) * 10**6 * (1 + i) for i in range(repeats)]}}
    for n in arguments["--n-prompt"].split(",")
]
print(json.dumps(tests))
"""


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_READ_BYTES", 1 << 22)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return TinyModel(tensor_type="Q8_0").write(tmp_path / "tiny.gguf")


@pytest.fixture
def llama_bench(tmp_path: Path) -> Path:
    path = tmp_path / "llama-bench"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def step_cost(model: Path, *arguments: str) -> Result:
    fixed = ["bench", "step-cost", "--target", str(model), "--context", "40", "--rounds", "2"]
    return CliRunner().invoke(cli, [*fixed, *arguments])


def test_json_has_what_the_reader_needs(model: Path) -> None:
    result = step_cost(model, "--rows", "1,2,5", "--threads", "2", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(found) == [
        "model", "context", "threads", "isa", "rows", "read_bandwidth_gb_s", "file_bytes_per_step",
        "bandwidth_fraction",
    ]  # fmt: skip
    assert (found["model"], found["context"], found["threads"]) == ("Tiny llama", 40, 2)
    assert found["isa"] == _native.isa()
    assert [row["rows"] for row in found["rows"]] == [1, 2, 5]
    assert all(row["ms"] > 0 for row in found["rows"])
    assert found["read_bandwidth_gb_s"] > 0
    # The file's bytes of all tensors, but of the separate embedding one row: 34 bytes for 32 values of Q8_0.
    example = TinyModel(tensor_type="Q8_0")
    sizes = {name: values.size for name, values in example.tensors().items()}
    matrices = sum(size for name, size in sizes.items() if "norm" not in name)
    floats = 4 * (sum(sizes.values()) - matrices)
    embedding = sizes["token_embd.weight"]
    row = embedding // example.vocab_size
    assert found["file_bytes_per_step"] == floats + (matrices - embedding + row) * 34 // 32
    seconds, bandwidth = found["rows"][0]["ms"] / 1e3, found["read_bandwidth_gb_s"] * 1e9
    assert found["bandwidth_fraction"] == pytest.approx(found["file_bytes_per_step"] / seconds / bandwidth)


def test_text_for_people(model: Path) -> None:
    result = step_cost(model, "--rows", "1,4", "--kernels", "reference")
    assert result.exit_code == 0, result.output
    assert ", reference\n" in result.stdout
    assert "memory read" in result.stdout
    table = [line.split() for line in result.stdout.splitlines()[-3:]]
    assert table[0] == ["ROWS", "MS", "OF", "ONE", "ROW"]
    assert [line[0] for line in table[1:]] == ["1", "4"]
    assert table[1][2] == "1.00"


def test_beside_llama_bench(model: Path, llama_bench: Path) -> None:
    arguments = ("--rows", "1,4", "--repeats", "3", "--vs-llama-bench", str(llama_bench))
    result = step_cost(model, *arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    # Samples of n, 2 n and 3 n milliseconds: the median is 2 n.
    assert [(row["rows"], row["ms"]) for row in found["llama_bench"]] == [(1, 2.0), (4, 8.0)]
    for ours, its in zip(found["rows"], found["llama_bench"], strict=True):
        assert its["ratio"] == pytest.approx(ours["ms"] / its["ms"])
    text = step_cost(model, *arguments)
    assert "LLAMA.CPP MS  OURS / ITS" in text.stdout
    assert text.stdout.splitlines()[-1].split()[3] == "8.00"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no such flag >&2; exit 3", "no such flag"),
        ("exit 3", "exit code 3"),
        ("echo hello", "Expecting value"),
        ("echo '[{}]'", "'n_prompt'"),
        ("""echo '[{"n_prompt": 9, "samples_ns": [1]}]'""", "tests that were not asked for"),
    ],
)
def test_a_llama_bench_that_is_none(model: Path, tmp_path: Path, script: str, reason: str) -> None:
    path = tmp_path / "llama-bench"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    result = step_cost(model, "--rows", "1", "--vs-llama-bench", str(path))
    assert result.exit_code == 2
    assert f"as llama-bench ({reason}" in result.stderr
    assert "Give --vs-llama-bench the path" in result.stderr


def test_a_llama_bench_that_is_not_there(model: Path, tmp_path: Path) -> None:
    result = step_cost(model, "--rows", "1", "--vs-llama-bench", str(tmp_path / "nothing"))
    assert result.exit_code == 2
    assert "No such file" in result.stderr


@pytest.mark.parametrize("rows", ["", "0", "1,x", "513", "1;2"])
def test_rows_are_checked(model: Path, rows: str) -> None:
    result = step_cost(model, "--rows", rows)
    assert result.exit_code == 2
    assert f"--rows {rows}; expected numbers from 1 to 512" in result.stderr
