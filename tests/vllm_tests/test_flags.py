"""The command line that a configuration means, and flags that would undo it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli.main import cli
from paceline.config.file import load_serve_config
from paceline.config.server import ServeSettings
from paceline.errors import ConfigError
from paceline.vllm.flags import Launch, launch_of

ROUTES: dict[str, Any] = {
    "chat": {"speculation": "auto", "max_draft_length": 5},
    "code": {"speculation": "on", "draft_length": 3},
    "batch": {"speculation": "off"},
}
BASE: dict[str, Any] = {"target": "org/target", "routes": ROUTES, "default_route": "chat"}


def settings(**values: Any) -> ServeSettings:
    return ServeSettings.of({**BASE, **values}, Path("/etc/paceline/site.yaml"))


def launch(*extra: str, **values: Any) -> Launch:
    return launch_of(settings(**values), extra)


def values_of(found: Launch) -> dict[str, str | None]:
    return {flag.name: flag.value for flag in found.flags}


def speculative(**values: Any) -> Any:
    text = values_of(launch(**values)).get("speculative-config")
    return None if text is None else json.loads(text)


def test_what_is_said_becomes_a_flag_and_what_is_not_said_is_left_to_vllm() -> None:
    plain = values_of(launch())
    assert plain["served-model-name"] == "target"
    assert plain["scheduler-cls"] == "paceline.vllm.RouteScheduler"
    assert json.loads(plain["additional-config"] or "")["paceline"]["bridge"] == "/etc/paceline/site.vllm"
    assert not {"max-model-len", "max-num-seqs", "kv-cache-memory-bytes", "block-size"} & plain.keys()
    full = values_of(launch(context_length=4096, max_num_seqs=64, kv_memory="2GiB", block_size=32,
                            server={"host": "0.0.0.0", "port": 9000, "shutdown_timeout_s": 2.5}))  # fmt: skip
    assert (full["max-model-len"], full["max-num-seqs"], full["block-size"]) == ("4096", "64", "32")
    assert full["kv-cache-memory-bytes"] == str(2 * 2**30)
    assert (full["host"], full["port"], full["shutdown-timeout"]) == ("0.0.0.0", "9000", "3")


def test_drafts_are_as_long_as_the_longest_that_a_route_wants() -> None:
    assert speculative() == {"method": "ngram", "num_speculative_tokens": 5}
    assert speculative(draft="org/draft") == {
        "method": "draft_model", "model": "org/draft", "num_speculative_tokens": 5
    }  # fmt: skip
    assert speculative(draft="org/draft", drafter="suffix")["method"] == "ngram"
    off = {"batch": {"speculation": "off"}}
    assert speculative(routes=off, default_route="batch")["num_speculative_tokens"] == 8
    off["batch"]["draft_length"] = 2  # type: ignore[assignment]
    assert speculative(routes=off, default_route="batch")["num_speculative_tokens"] == 2


def test_where_every_route_that_speculates_looks_up_there_is_no_draft_model() -> None:
    routes = {
        "chat": {"drafters": ["suffix"]},
        "code": {"drafters": "suffix"},
        "batch": {"speculation": "off"},
    }
    for draft in ({}, {"draft": "org/draft"}, {"vllm": {"draft": "org/draft"}}):
        found = launch(routes=routes, **draft)
        assert found.speculative.config == {"method": "ngram", "num_speculative_tokens": 8}
        told = ["the draft model is not loaded: look-ups draft for all routes"] if draft else []
        assert list(found.notes) == told
    assert speculative(routes={"chat": {"speculation": "off"}}, draft="org/draft")["method"] == "draft_model"
    model = {"speculative": {"model": "org/other"}}
    with pytest.raises(ConfigError, match="'model' among them"):
        launch(routes=routes, vllm=model)


def test_what_is_said_for_vllm_goes_over_what_follows() -> None:
    eagle = {"method": "eagle3", "model": "org/head"}
    assert speculative(draft="org/draft", vllm={"speculative": eagle}) == {
        **eagle,
        "num_speculative_tokens": 5,
    }
    look_up = {"prompt_lookup_max": 6, "num_speculative_tokens": 7}
    assert speculative(vllm={"speculative": look_up}) == {"method": "ngram", **look_up}
    assert speculative(draft="a-preset", vllm={"draft": "org/small"})["model"] == "org/small"
    more = json.loads(values_of(launch(vllm={"additional_config": {"x": 1}}))["additional-config"] or "")
    assert (more["x"], "paceline" in more) == (1, True)


def test_without_a_drafter_there_are_no_drafts_and_no_route_may_want_any() -> None:
    off = {"batch": {"speculation": "off"}}
    assert speculative(drafter="none", routes=off, default_route="batch") is None
    with pytest.raises(ConfigError, match="drafter: none"):
        launch(drafter="none")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"target": "qwen2.5-coder-1.5b-instruct"}, r"a preset, which is a GGUF file.*model below vllm"),
        ({"draft": "smollm2-135m-instruct"}, r"draft 'smollm2-135m-instruct'.*draft below vllm"),
        ({"target": "models/file.gguf"}, "a single file"),
        ({"target": "./not/there"}, "no folder that is there"),
        ({"drafts": {"a": "org/a", "b": "org/b"}}, "2 draft models.*vllm.draft"),
        (
            {"routes": {"chat": {"drafters": ["suffix"]}, "code": {}}, "draft": "org/draft"},
            "'model' among them",
        ),
        ({"vllm": {"model": "~/not/there"}}, "vllm.model '~/not/there', no folder that is there"),
        ({"vllm": {"model": "/"}}, "a folder without config"),
        ({"vllm": {"draft": "./not/there"}}, "vllm.draft './not/there', no folder"),
        ({"vllm": {"speculative": {"num_speculative_tokens": 4}}}, "drafts of 5 tokens on route 'chat'"),
        ({"vllm": {"speculative": {"num_speculative_tokens": 0}}}, "a number from 1"),
        ({"capture": {"path": "x.jsonl", "share": 0.5}}, "capture, which is not served on vLLM"),
        ({"server": {"max_prompt_tokens": 100}}, "context_length"),
        ({"server": {"port": 0}}, "port that clients can know"),
        ({"vllm": {"modell": "x"}}, "unknown key 'modell' of vllm.*'model'"),
        ({"vllm": {"additional_config": {"paceline": {}}}}, "keys other than 'paceline'"),
    ],
)
def test_what_vllm_cannot_do_is_refused_with_what_to_do(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        launch(**values)


def test_a_folder_of_safetensors_is_given_by_its_full_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"without config\.json"):
        launch(target=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert launch(target=str(tmp_path)).model == str(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOME", str(tmp_path.parent))
        assert launch(target="a-preset", vllm={"model": f"~/{tmp_path.name}"}).model == str(tmp_path)


def test_drafters_have_a_worker_that_can_leave_them_out() -> None:
    def seen(*extra: str, **values: Any) -> tuple[str | None, bool]:
        found = values_of(launch(*extra, **values))
        ours = json.loads(found["additional-config"] or "")["paceline"]
        return found.get("worker-cls"), ours["skips_drafting"]

    assert seen(draft="org/draft") == ("paceline.vllm.RouteWorker", True)
    assert seen() == ("paceline.vllm.RouteWorker", True)  # look-ups
    assert seen(drafter="none", routes={"chat": {"speculation": "off"}}) == (None, False)
    # One that follows the answers token by token has to see all of them.
    assert seen(vllm={"speculative": {"method": "suffix"}}) == (None, False)
    assert seen("--worker-cls", "another.Worker", draft="org/draft") == (None, False)
    assert seen("--worker-cls", "another.Worker") == (None, False)


@pytest.mark.parametrize(
    "extra",
    [
        ("--tensor-parallel-size", "2"),
        ("-tp", "2", "-pp=2"),
        ("--data-parallel-size", "4", "--distributed-executor-backend", "ray"),
        ("--middleware", "another.Middleware"),
        ("--no-async-scheduling",),
        ("--rope-scaling", "-1"),
    ],
)
def test_flags_of_vllm_pass_through(extra: tuple[str, ...]) -> None:
    found = launch(*extra, vllm={"flags": ["--seed", 7]})
    assert found.arguments[-len(extra) - 2 :] == ["--seed", "7", *extra]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("--scheduler-cls other.Scheduler", "reads the routes"),
        ("--scheduler_cls=other.Scheduler", "reads the routes"),
        ("--sched other.Scheduler", "reads the routes"),
        ("-sc {}", "vllm.speculative"),
        ("--speculative-config.method ngram", "vllm.speculative"),
        ("--spec-tokens 3", "vllm.speculative"),
        ("--additional-config {}", "vllm.additional_config"),
        ("-asc 4", "one process"),
        ("--api-key secret", "server.api_keys"),
        ("--port 1", "server.port"),
        ("--config other.yaml", "vllm.flags"),
        ("--grpc", "over HTTP"),
        ("--max-model-len 100", "and in the configuration"),
    ],
)
def test_flags_that_contradict_the_configuration_are_refused(extra: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        launch(*extra.split(), context_length=4096)


def test_a_node_without_a_server_has_the_scheduler_and_not_the_routes_of_requests() -> None:
    found = launch("--headless", "--data-parallel-start-rank", "2")
    assert found.is_headless
    assert "scheduler-cls" in values_of(found)
    assert not {"middleware", "api-server-count", "port"} & values_of(found).keys()


def test_what_has_no_effect_is_said() -> None:
    routes = {**ROUTES, "idle": {"drafters": ["suffix"], "speculation": "off", "verification": "rejection"}}
    found = launch(
        routes=routes, draft="org/draft", threads=2, kernels="native", decision_log="elsewhere.jsonl"
    )
    assert found.notes[0].startswith("not used by vLLM: threads, kernels, decision_log")
    assert "verification of idle" in found.notes[1]
    assert found.notes[2] == "no drafts on idle: 'model' is not among their drafters"
    assert launch().notes == ()


def test_the_command_prints_what_would_run_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(json.dumps({**BASE, "server": {"model_name": "it's"}}))
    result = CliRunner().invoke(
        cli, ["vllm", "flags", "--config", str(path), "--port", "9001", "--", "-tp", "2"]
    )
    assert result.exit_code == 0
    words = shlex.split(result.stdout.replace("\\\n", " "))
    assert words[:4] == ["VLLM_USE_RUST_FRONTEND=0", "vllm", "serve", "org/target"]
    assert words[words.index("--served-model-name") + 1] == "it's"
    assert words[words.index("--port") + 1] == "9001"
    assert words[-2:] == ["-tp", "2"]
    assert "one process has the routes" in result.stderr
    assert list(tmp_path.iterdir()) == [path]
    shown = CliRunner().invoke(cli, ["vllm", "flags", "--config", str(path), "--json"])
    assert json.loads(shown.stdout)["arguments"][:3] == ["vllm", "serve", "org/target"]


def test_mistakes_leave_as_messages(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(json.dumps({**BASE, "target": "a-preset"}))
    result = CliRunner().invoke(cli, ["vllm", "serve", "--config", str(path)])
    assert result.exit_code == 2
    assert "Name the same model in that form as model below vllm" in result.stderr


def test_the_schema_explains_the_part_for_vllm() -> None:
    schema = json.loads(CliRunner().invoke(cli, ["config", "schema"]).stdout)
    keys = schema["properties"]["vllm"]["properties"]
    assert {"model", "draft", "speculative", "flags", "bridge"} <= keys.keys()
    assert all(one["description"] for one in keys.values())


def test_a_configuration_for_vllm_serves_the_embedded_engine_too(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(json.dumps({**BASE, "target": "a-preset", "vllm": {"model": "org/target"}}))
    assert load_serve_config(path).engine.target == "a-preset"
    assert launch_of(load_serve_config(path)).model == "org/target"
