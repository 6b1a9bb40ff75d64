"""`paceline measure` on a tiny pair: from traffic to a report, a configuration and gates, stopped and gone on
with."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from click.testing import CliRunner, Result

from paceline.cli.main import cli
from paceline.config.file import load_serve_config
from paceline.engine.commit import commit_step
from paceline.llm import LLM
from paceline.measure.report.build import schema
from paceline.measure.session import Session
from paceline.records import SamplingParams
from tests.tiny_models import TinyModel

ROUTES = ("code", "chat")


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    """A target, a draft model that often agrees (the target's file, in 4 bits), and one that never does."""
    sizes = {"hidden_size": 64, "num_layers": 2}
    target = TinyModel(tensor_type="Q8_0", **sizes).write(tmp_path / "target.gguf")
    stranger = TinyModel(tensor_type="Q8_0", seed=1, **sizes).write(tmp_path / "stranger.gguf")
    return {"target": str(target), "own": str(target), "stranger": str(stranger)}


@pytest.fixture
def traffic(tmp_path: Path) -> str:
    path = tmp_path / "traffic.jsonl"
    lines: list[dict[str, Any]] = [
        {"id": f"{route}-{i}", "route": route, "prompt": f"the {route} number {i} " * (1 + i)}
        for i in range(3)
        for route in ROUTES
    ]
    lines.append({"model": "m:code", "prompt": "with tools", "tools": [{"type": "function"}]})
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def measure(
    models: dict[str, str], traffic: str, folder: Path, *arguments: str, draft: str = "own"
) -> Result:
    fixed = [
        "measure", "--target", models["target"], "--traffic", traffic, "--output", str(folder / "out"),
        "--concurrency", "1,2", "--budget", "20s", "--max-tokens", "16", "--kv-memory", "32MiB",
        "--threads", "1",
    ]  # fmt: skip
    drafts = ["--draft", models[draft]] if draft else []
    return CliRunner().invoke(cli, [*fixed, *drafts, *arguments])


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "out" / "report.json").read_text())
    jsonschema_rs.validator_for(schema()).validate(report)
    return report


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_report_has_every_figure_of_every_route(
    models: dict[str, str], traffic: str, tmp_path: Path, temperature: str
) -> None:
    result = measure(models, traffic, tmp_path, "--temperature", temperature)
    assert result.exit_code == 0, result.output
    report = report_of(tmp_path)
    assert [one["name"] for one in report["routes"]] == list(ROUTES)
    assert report["traffic"]["left_out"] == [{"reason": "with tools", "num_lines": 1}]
    assert report["num_identical"] == report["num_outputs"] > 0
    for route in report["routes"]:
        assert route["num_prompts"] == route["num_in_traffic"] == 3
        by_drafter = {one["drafter"]: one for one in route["drafters"]}
        assert by_drafter.keys() == {"model", "mixed", "suffix"}
        # The same weights, held in 4 bits: it agrees often.
        assert by_drafter["model"]["agreement"]["value"] > 0.3
        lengths = [one["acceptance_length"]["value"] for one in by_drafter["model"]["by_length"]]
        assert lengths == sorted(lengths)
        # Some steps have no room for a draft, so it is emitted less often than it is right.
        assert 0.2 < lengths[0] - 1 <= by_drafter["model"]["by_length"][0]["acceptance_rate"]["value"]
        for load in route["loads"]:
            assert load["is_timed"]
            assert load["plain"]["tokens_per_second"] > 0
            assert load["plain"]["drafted_per_token"] == 0
            for one in load["settings"]:
                assert one["speedup"]["value"] > 0
                assert one["num_turns"] == load["plain"]["num_turns"]
                if one["drafted_per_token"] and "model" in one["setting"]:
                    assert one["extra_flops_per_token"] > 0
    settings = load_serve_config(tmp_path / "out" / "paceline.yaml", environ={})
    assert set(settings.engine.routes) == set(ROUTES)
    html = (tmp_path / "out" / "report.html").read_text()
    assert f"Outputs identical: {report['num_outputs']} of {report['num_outputs']}" in html


def test_readings_give_what_live_runs_of_the_same_models_count(
    models: dict[str, str], traffic: str, tmp_path: Path
) -> None:
    """The report's drafted and accepted tokens at k are those of the engine at k."""
    assert measure(models, traffic, tmp_path, "--max-draft-length", "6").exit_code == 0
    report = report_of(tmp_path)
    asked = [json.loads(line) for line in Path(traffic).read_text().splitlines()[:-1]]
    num_accepted = 0
    for length in (1, 3, 6):
        with LLM(models["target"], models["own"], draft_length=length, kv_memory="32MiB", threads=1) as llm:
            for route in report["routes"]:
                prompts = [one["prompt"] for one in asked if one["route"] == route["name"]]
                live = [llm.generate(one, SamplingParams(max_tokens=16))[0] for one in prompts]
                (model,) = (one for one in route["drafters"] if one["drafter"] == "model")
                (at,) = (one for one in model["by_length"] if one["draft_length"] == length)
                assert at["num_accepted"] == sum(one.speculation.num_accepted for one in live)
                # Behind a wrong guess the draft model may draw an end token, and draft no further: no reading
                # can tell, and nothing but this count depends on it.
                drafted = sum(one.speculation.num_drafted for one in live)
                assert 0.95 * at["num_drafted"] <= drafted <= at["num_drafted"]
                num_accepted += at["num_accepted"]
    assert num_accepted > 50


def test_a_measurement_that_is_stopped_goes_on_and_does_nothing_twice(
    models: dict[str, str], traffic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "out" / "journal.jsonl"
    phases: list[str] = []
    tell = Session._tell

    def stopping(self: Session, detail: str) -> None:
        tell(self, detail)
        if self._phase not in phases:
            phases.append(self._phase)
            raise KeyboardInterrupt

    monkeypatch.setattr(Session, "_tell", stopping)
    kept = b""
    for _ in range(12):
        result = measure(models, traffic, tmp_path)
        data = journal.read_bytes()
        assert data.startswith(kept)
        kept = data
        if result.exit_code == 0:
            break
        assert result.exit_code == 130
    assert result.exit_code == 0
    expected = ["loading", "answers without drafts", "drafters read the answers", "forecasting", "timing"]
    assert phases == expected
    lines = [json.loads(line) for line in kept.splitlines()[1:]]
    answered = Counter(one["id"] for one in lines if one["kind"] == "answer")
    read = Counter((one["drafter"], one["request_id"]) for one in lines if one["kind"] == "reading")
    timed = Counter(
        (one["route"], one["concurrency"], one["turn"], one["setting"])
        for one in lines
        if one["kind"] == "run"
    )
    assert set(answered.values()) == set(read.values()) == set(timed.values()) == {1}
    assert len(answered) == 6
    report_of(tmp_path)
    # Once it is done, nothing is loaded again.
    monkeypatch.setattr("paceline.measure.session.Bench", None)
    assert measure(models, traffic, tmp_path, "--require", "*.identical==1").exit_code == 0
    assert journal.read_bytes() == kept


def test_another_measurement_is_not_mixed_in(models: dict[str, str], traffic: str, tmp_path: Path) -> None:
    assert measure(models, traffic, tmp_path, "--budget", "1s").exit_code == 0
    result = measure(models, traffic, tmp_path, "--max-tokens", "8", draft="stranger")
    assert result.exit_code == 2
    assert "another drafts, max_tokens; expected one of the same models" in result.stderr


def test_a_budget_that_is_too_short_leaves_forecasts_that_say_so(
    models: dict[str, str], traffic: str, tmp_path: Path
) -> None:
    result = measure(models, traffic, tmp_path, "--budget", "0.01s", "--require", "code.tokens_per_second>=0")
    assert result.exit_code == 3
    assert "NOT MET: code.tokens_per_second>=0 (code: not measured)" in result.stderr
    report = report_of(tmp_path)
    for route in report["routes"]:
        assert route["num_prompts"] >= 1
        assert not any(load["is_timed"] for load in route["loads"])
        assert not route["recommendation"]["is_measured"]
        assert "not timed" in route["recommendation"]["reason"]
    assert "(forecast)" in result.stdout


def test_a_draft_model_that_never_agrees_is_named_and_not_served(
    models: dict[str, str], traffic: str, tmp_path: Path
) -> None:
    assert measure(models, traffic, tmp_path, draft="stranger").exit_code == 0
    report = report_of(tmp_path)
    for route in report["routes"]:
        assert [one["draft"] for one in route["mismatch"]] == [""]
        assert "model" not in route["recommendation"]["route"].get("drafters", ["suffix"])[1:]
    config = load_serve_config(tmp_path / "out" / "paceline.yaml", environ={})
    assert config.engine.draft is None
    assert "fewer than half" in (tmp_path / "out" / "report.html").read_text()


def test_several_draft_models_are_read_one_by_one(
    models: dict[str, str], traffic: str, tmp_path: Path
) -> None:
    drafts = ["--draft", f"own={models['own']}", "--draft", f"odd={models['stranger']}"]
    result = measure(models, traffic, tmp_path, *drafts, draft="")
    assert result.exit_code == 0, result.output
    report = report_of(tmp_path)
    for route in report["routes"]:
        guessed = {one["drafter"]: one["agreement"]["value"] for one in route["drafters"]}
        assert guessed.keys() == {"model:own", "mixed:own", "model:odd", "mixed:odd", "suffix"}
        assert guessed["model:own"] > 0.3 > guessed["model:odd"]
        assert [one["draft"] for one in route["mismatch"]][-1] == "odd"


def test_without_a_draft_model_look_ups_are_measured(
    models: dict[str, str], traffic: str, tmp_path: Path
) -> None:
    assert measure(models, traffic, tmp_path, "--routes", "chat,code=chat", draft="").exit_code == 0
    (route,) = report_of(tmp_path)["routes"]
    assert route["num_in_traffic"] == 6
    assert [one["drafter"] for one in route["drafters"]] == ["suffix"]


def test_outputs_that_differ_are_an_error(
    models: dict[str, str], traffic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(part, verdict, num_drafted, now, *more):  # type: ignore[no-untyped-def]
        commit_step(part, verdict, num_drafted, now, *more)
        if part.sequence.request.speculation.enabled:
            part.sequence.token_ids[-1] ^= 1

    monkeypatch.setattr("paceline.engine.engine.commit_step", wrong)
    assert measure(models, traffic, tmp_path).exit_code == 1
    report = report_of(tmp_path)
    assert report["num_identical"] < report["num_outputs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--require", "chat.speed>=1"],
            "figure 'speed' of --require chat.speed>=1; expected one of speedup",
        ),
        (["--require", "chat.speedup"], "--require chat.speedup; expected ROUTE.FIGURE"),
        (
            ["--require", "rag.speedup>1"],
            "route 'rag' of --require rag.speedup>1; expected one of code, chat, *",
        ),
        (["--require", "chat.speedup@9>1"], "9 clients of --require chat.speedup@9>1; expected one of"),
        (["--require", "chat.identical@1>=1"], "figure 'identical'"),
        (["--budget", "soon"], "--budget soon; expected a number with its unit"),
        (["--budget", "0s"], "--budget 0s"),
        (
            ["--routes", "chat,rag"],
            "route 'rag', which the traffic does not have; expected one of code, chat",
        ),
        (["--routes", "chat,chat"], "--routes chat,chat; expected routes"),
        (["--routes", "code=chat"], "--routes code=chat; expected routes"),
        (["--draft", "again"], "a name of its own for each of several draft models"),
        (["--concurrency", "0"], "--concurrency 0"),
        (["--temperature", "-1"], "temperature = -1.0"),
    ],
)
def test_what_is_refused(
    models: dict[str, str], traffic: str, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = measure(models, traffic, tmp_path, *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
