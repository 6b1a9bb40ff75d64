"""`paceline bench load` on a tiny pair: its JSON, its table, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.main import cli
from paceline.engine.commit import commit_step
from tests.tiny_models import TinyModel


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    target = TinyModel(tensor_type="Q8_0").write(tmp_path / "target.gguf")
    draft = TinyModel(tensor_type="Q8_0", seed=1).write(tmp_path / "draft.gguf")
    return ["--target", str(target), "--draft", str(draft), "--kv-memory", "64MiB"]


@pytest.fixture
def traffic(tmp_path: Path) -> str:
    path = tmp_path / "traffic.jsonl"
    lines = [
        {"id": f"{route}-{i}", "route": route, "prompt": f"the {route} number {i}"}
        for i in range(3)
        for route in ("code", "chat")
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def load(pair: list[str], traffic: str, *arguments: str) -> Result:
    fixed = ["bench", "load", *pair, "--input", traffic, "--max-tokens", "12"]
    return CliRunner().invoke(cli, [*fixed, *arguments])


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_json_has_a_cell_for_each_route_concurrency_and_mode(
    pair: list[str], traffic: str, temperature: str
) -> None:
    modes = "off,on:3,on:2:suffix,on:4:mixed"
    result = load(
        pair, traffic, "--concurrency", "1,3", "--speculation", modes, "--temperature", temperature, "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    cells = found["cells"]
    assert [(c["route"], c["concurrency"], c["speculation"]) for c in cells] == [
        (route, n, mode) for route in ("code", "chat") for n in (1, 3) for mode in modes.split(",")
    ]
    for cell in cells:
        assert cell["num_identical"] == cell["num_outputs"] == 3
        assert cell["num_failed"] == 0
        assert cell["tokens_per_second"] > 0
        assert 0 < cell["ttft_p50_s"] <= cell["ttft_p95_s"] <= cell["ttft_p99_s"]
        assert 0 < cell["itl_p50_s"] <= cell["itl_p95_s"] <= cell["itl_p99_s"]
        assert 0 < cell["overhead_share"] < 1
        assert 0 < cell["peak_kv_blocks"] <= cell["num_kv_blocks"]
        assert (cell["acceptance_rate"] is None) == (cell["num_drafted"] == 0)
        assert cell["num_preemptions"] == 0
        assert {"num_prefix_hits", "num_prefix_queries", "acceptance_length", "wall_s"} <= cell.keys()
    assert all(c["num_drafted"] > 0 for c in cells if c["speculation"] == "on:3")


def test_the_table_and_the_warning_are_for_people(pair: list[str], traffic: str) -> None:
    result = load(pair, traffic, "--routes", "chat", "--limit", "2", "--concurrency", "1,4")
    assert result.exit_code == 0, result.output
    assert "chat: 2 requests keep only 2 clients busy" in result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("chat")]
    assert [row[:3] for row in rows] == [["chat", n, mode] for n in "14" for mode in ("off", "on:3")]
    assert all(row[-3:] == ["2", "of", "2"] for row in rows)
    assert rows[0][4] == "1.00"


def test_mixed_runs_all_routes_together_and_in_turns(pair: list[str], traffic: str) -> None:
    result = load(pair, traffic, "--mixed", "--limit", "2", "--concurrency", "2", "--json")
    cells = json.loads(result.stdout)["cells"]
    assert [(c["route"], c["num_outputs"]) for c in cells] == [("mixed", 4), ("mixed", 4)]


def test_without_a_draft_model_the_suffix_drafter_can_be_measured(pair: list[str], traffic: str) -> None:
    result = load([*pair[:2], *pair[4:]], traffic, "--concurrency", "2", "--speculation", "on:3:suffix,off")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] != ""


def test_outputs_that_differ_are_an_error(
    pair: list[str], traffic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(part, verdict, num_drafted, now, *more):  # type: ignore[no-untyped-def]
        commit_step(part, verdict, num_drafted, now, *more)
        if num_drafted:
            part.sequence.token_ids[-1] ^= 1

    monkeypatch.setattr("paceline.engine.engine.commit_step", wrong)
    result = load(pair, traffic, "--concurrency", "1", "--limit", "1", "--json")
    assert result.exit_code == 1
    cells = json.loads(result.stdout)["cells"]
    assert [c["num_identical"] for c in cells] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--routes", "code,other"], "--routes code,other; expected routes of the file"),
        (["--concurrency", "0"], "--concurrency 0; expected different numbers from 1 up"),
        (["--concurrency", "2,2"], "--concurrency 2,2; expected different numbers"),
        (["--concurrency", "many"], "--concurrency many"),
        (["--speculation", "on:3:none"], "--speculation on:3:none; expected a drafter that is there"),
        (["--temperature", "-1"], "temperature = -1.0"),
    ],
)
def test_what_is_refused(pair: list[str], traffic: str, arguments: list[str], message: str) -> None:
    result = load(pair, traffic, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
