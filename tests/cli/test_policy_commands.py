"""`--speculation auto`, `paceline calibrate` and `paceline bench regret` on a tiny pair."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paceline.cli.main import cli
from paceline.cli.plots import text_bars
from tests.tiny_models import TinyModel


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("policy")
    target = TinyModel("qwen2", tensor_type="Q8_0").write(folder / "target.gguf")
    draft = TinyModel("qwen2", num_layers=1, tensor_type="Q8_0").write(folder / "draft.gguf")
    return ["--target", str(target), "--draft", str(draft)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def traffic(tmp_path: Path) -> str:
    path = tmp_path / "traffic.jsonl"
    lines = [
        {"id": f"{route}-{i}", "route": route, "prompt": f"the {route} number {i}"}
        for i in range(2)
        for route in ("code", "chat")
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def paceline(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


MEMORY = ("--kv-memory", "64MiB", "--context-length", "256")


def test_generate_compares_auto_with_off_and_shows_what_the_policy_says(pair: list[str]) -> None:
    result = paceline(
        "generate", *pair, "--chat", "the def", "--speculation", "auto", "--compare", "--max-tokens", "24",
        "--temperature", "0.5", "--seed", "1", *MEMORY,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "outputs identical: 1 of 1" in result.stdout
    assert "--- speculation auto ---" in result.stdout
    assert "speed, auto / off" in result.stdout
    assert re.search(r"policy, default: (speculating|paused)", result.stdout)


def test_generate_json_has_the_policys_report(pair: list[str]) -> None:
    result = paceline(
        "generate",
        *pair,
        "--prompt",
        "the def",
        "--speculation",
        "auto",
        "--max-tokens",
        "20",
        "--json",
        *MEMORY,
    )
    assert result.exit_code == 0, result.output
    answer, last = map(json.loads, result.stdout.splitlines())
    assert answer["mode"] == "auto"
    (report,) = last["policy"]
    assert report["speculation"] == "auto"
    assert report["state"] in ("speculating", "paused")
    assert {"acceptance", "draft_lengths", "speedup", "note", "sentence"} <= set(report)


def test_load_takes_auto_beside_fixed_settings(pair: list[str], traffic: str) -> None:
    result = paceline(
        "bench", "load", *pair, "--input", traffic, "--speculation", "off,auto,auto:suffix,on:2",
        "--concurrency", "2", "--max-tokens", "12", "--json", *MEMORY,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    cells = json.loads(result.stdout)["cells"]
    assert [c["speculation"] for c in cells[:4]] == ["off", "auto", "auto:suffix", "on:2"]
    assert all(c["num_identical"] == c["num_outputs"] for c in cells)


def test_calibrate_shows_a_table_with_bars_and_keeps_the_costs(pair: list[str], tmp_path: Path) -> None:
    result = paceline("calibrate", *pair)
    assert result.exit_code == 0, result.output
    assert "target: milliseconds of a forward pass" in result.stdout
    assert "model: milliseconds of a forward pass" in result.stdout
    assert "ROWS" in result.stdout
    assert "#" in result.stdout
    (kept,) = (tmp_path / "cache" / "step-costs").glob("*.json")
    result = paceline("calibrate", *pair, "--json")
    found = json.loads(result.stdout)
    assert found["key"] == kept.stem
    assert found["target"]["rows"] if isinstance(found["target"], dict) else True


def test_bars_are_as_long_as_their_values() -> None:
    one, two = text_bars({"1": 5.0, "16": 10.0}, "ms", width=10)
    assert (one, two) == (" 1  ##### 5.0 ms", "16  ########## 10.0 ms")


REGRET = ("--settings", "off,auto,model:2", "--repeats", "2", "--concurrency", "1,2", "--max-tokens", "10",
          "--warm-up", "1")  # fmt: skip


def test_regret_has_a_cell_for_each_route_and_concurrency_and_goes_on_where_it_stopped(
    pair: list[str], traffic: str, tmp_path: Path
) -> None:
    kept = tmp_path / "runs.jsonl"
    command = ("bench", "regret", *pair, "--input", traffic, *REGRET, *MEMORY, "--resume", str(kept))
    result = paceline(*command, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(c["route"], c["concurrency"]) for c in found["cells"]] == [
        ("code", 1), ("code", 2), ("chat", 1), ("chat", 2),
    ]  # fmt: skip
    for cell in found["cells"]:
        assert cell["auto_over_off"] > 0
        assert cell["auto_over_off_upper"] >= cell["auto_over_off"]
        assert cell["auto_over_best_fixed"] > 0
        assert cell["best_fixed"] in ("off", "model:2")
        assert cell["predicted_speedup"] > 0
        assert cell["decode_auto_over_off"] > 0
        assert cell["forecast_of_off"] > 0
        assert cell["num_slices"] == 2 * (2 // cell["concurrency"])
        assert cell["num_identical"] == cell["num_outputs"] == 8
    lines = kept.read_text().splitlines()
    assert len(lines) == 1 + 2 * 2 * 3 * 2
    # Where a run is missing, those that it took turns with are made again, and no others.
    kept.write_text("\n".join(lines[:-1]) + "\n")
    result = paceline(*command)
    assert result.exit_code == 0, result.output
    assert kept.read_text().splitlines()[: len(lines) - 1] == lines[:-1]
    again = [json.loads(line) for line in kept.read_text().splitlines()[len(lines) - 1 :]]
    assert [(r["route"], r["concurrency"], r["repeat"], r["setting"]) for r in again] == [
        ("chat", 2, 2, setting) for setting in ("off", "auto", "model:2")
    ]
    assert "auto / best fixed" in result.stdout
    assert "decoding, auto / off" in result.stdout
    assert re.search(r"slices +of a request a client", result.stdout)
    assert "1 requests a client before the first slice" in result.stdout


def test_regret_takes_whole_runs_and_refuses_those_of_an_earlier_version(
    pair: list[str], traffic: str, tmp_path: Path
) -> None:
    kept = tmp_path / "runs.jsonl"
    command = (
        "bench", "regret", *pair, "--input", traffic, "--settings", "off,auto", "--repeats", "1",
        "--concurrency", "1", "--routes", "code", "--max-tokens", "6", "--slice", "0", *MEMORY,
        "--resume", str(kept),
    )  # fmt: skip
    result = paceline(*command, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["slice"] == 0
    assert [cell["num_slices"] for cell in found["cells"]] == [1]
    assert found["cells"][0]["auto_over_best_fixed"] is None
    header, *_ = kept.read_text().splitlines()
    kept.write_text(json.dumps({"regret": json.loads(header)["regret"]}) + "\n")
    result = paceline(*command)
    assert result.exit_code == 2
    assert "whose runs are of version 1; expected version 2, runs that are cut into slices" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--settings", "off,model:2"], "--settings off,model:2; expected each setting once, off and auto"),
        (["--settings", "off,auto,magic:2"], "--settings magic:2; expected off, auto, or DRAFTER:K"),
        (["--concurrency", "0"], "--concurrency 0"),
        (["--routes", "other"], "--routes other"),
        (["--slice", "2", "--concurrency", "1,4"], "--slice 2 with 4 clients; expected 0, or a request for"),
    ],
)
def test_what_regret_refuses(pair: list[str], traffic: str, arguments: list[str], message: str) -> None:
    result = paceline("bench", "regret", *pair, "--input", traffic, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
