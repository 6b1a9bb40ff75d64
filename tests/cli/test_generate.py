"""`paceline generate` as a user types it, on tiny model files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from paceline.cli.main import cli
from paceline.llm import LLM
from tests.tiny_models import TinyModel

REQUESTS = [
    {"id": "one", "route": "chat", "messages": [{"role": "user", "content": "the def"}], "follow_ups": []},
    {"id": "two", "route": "code", "messages": [{"role": "user", "content": "return in"}]},
    {"id": "three", "prompt": "to he the"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate")
    TinyModel("qwen2").write(folder / "target.gguf")
    TinyModel("qwen2", num_layers=1).write(folder / "draft.gguf")
    (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in REQUESTS))
    return folder


def generate(folder: Path, *arguments: str) -> Result:
    named = {"TARGET": "target.gguf", "DRAFT": "draft.gguf", "REQUESTS": "requests.jsonl"}
    given = [str(folder / named[a]) if a in named else a for a in arguments]
    fixed = ["--context-length", "256", "--kv-memory", "64MiB"]
    return CliRunner().invoke(cli, ["generate", *given, *fixed])


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_several_draft_models_have_names(folder: Path) -> None:
    drafts = [f"--draft={name}={folder / file}" for name, file in (("a", "draft.gguf"), ("b", "target.gguf"))]
    common = ("--target", "TARGET", "--prompt", "the def", "--max-tokens", "12", "--json", "--seed", "1")
    by_default, named, plain = (
        lines(generate(folder, *common, *more))[0]
        for more in (drafts, [*drafts, "--drafter", "model:b"], ["--speculation", "off"])
    )
    assert by_default["speculation"]["drafter"] == "model:a"
    assert named["speculation"]["drafter"] == "model:b"
    assert named["speculation"]["num_drafted"] > 0
    assert by_default["token_ids"] == named["token_ids"] == plain["token_ids"]
    refused = generate(folder, *common, "--draft", "DRAFT", drafts[1])
    assert refused.exit_code == 2
    assert "NAME=MODEL" in refused.stderr


def test_json_lines_of_a_comparison(folder: Path) -> None:
    result = generate(
        folder, "--target", "TARGET", "--draft", "DRAFT", "--input", "REQUESTS", "--max-tokens", "24",
        "--temperature", "0.8", "--draft-length", "3", "--concurrency", "3", "--compare", "--json",
    )  # fmt: skip
    *answers, last = lines(result)
    assert [(a["id"], a["mode"]) for a in answers] == [
        (name, mode) for mode in ("off", "on") for name in ("one", "two", "three")
    ]
    off, on = answers[:3], answers[3:]
    for a, b in zip(off, on, strict=True):
        assert a["token_ids"] == b["token_ids"]
        assert (a["text"], a["seed"], a["usage"]) == (b["text"], b["seed"], b["usage"])
    assert off[0]["seed"] != off[1]["seed"]
    assert [a["route"] for a in on] == ["chat", "code", None]
    assert set(on[0]) == {
        "id", "route", "text", "token_ids", "finish_reason", "usage", "speculation", "timing", "seed",
        "index", "mode",
    }  # fmt: skip
    assert set(on[0]["usage"]) == {"prompt_tokens", "completion_tokens"}
    assert set(on[0]["speculation"]) == {
        "drafter", "num_steps", "num_drafted", "num_accepted", "acceptance_rate", "acceptance_length",
        "fallback", "drafted_by_position", "accepted_by_position",
    }  # fmt: skip
    assert set(on[0]["timing"]) == {"ttft_s", "decode_s", "tokens_per_second", "draft_s", "verify_s"}
    assert off[0]["speculation"]["drafter"] is None
    assert off[0]["speculation"]["num_drafted"] == 0
    assert on[0]["speculation"]["drafter"] == "model"
    assert sum(a["speculation"]["num_drafted"] for a in on) > 0
    summary = last["summary"]
    assert set(summary) == {"off", "on", "ratio", "num_identical", "num_outputs"}
    assert (summary["num_identical"], summary["num_outputs"]) == (3, 3)
    assert summary["off"]["acceptance_rate"] is None
    assert 0 < summary["on"]["acceptance_rate"] < 1
    assert summary["ratio"] == pytest.approx(
        summary["on"]["tokens_per_second"] / summary["off"]["tokens_per_second"]
    )


@pytest.mark.parametrize(
    ("flags", "mode", "drafter"),
    [
        (["--draft", "DRAFT"], "on", "model"),
        (["--draft", "DRAFT", "--speculation", "off"], "off", None),
        (["--draft", "DRAFT", "--drafter", "none"], "off", None),
        (["--draft", "DRAFT", "--drafter", "suffix"], "on", "suffix"),
        (["--drafter", "suffix", "--verification", "rejection"], "on", "suffix"),
        ([], "off", None),
    ],
)
def test_one_mode(folder: Path, flags: list[str], mode: str, drafter: str | None) -> None:
    result = generate(
        folder, "--target", "TARGET", *flags, "--prompt", "the def", "--max-tokens", "8", "--json"
    )
    answer, last = lines(result)
    assert answer["mode"] == mode
    assert answer["speculation"]["drafter"] == drafter
    assert set(last["summary"]) == {mode}


def test_a_draft_that_would_idle_is_not_loaded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    flags = ["--speculation", "off", "--draft", "no-such-model", "--prompt", "the def", "--max-tokens", "3"]
    result = generate(folder, "--target", "TARGET", *flags)
    assert result.exit_code == 0, result.output
    assert "no-such-model is not loaded: speculation is off" in caplog.text


def test_seed_repeats_an_answer(folder: Path) -> None:
    arguments = ["--target", "TARGET", "--chat", "the", "--temperature", "1", "--max-tokens", "9", "--json"]
    first, second = (lines(generate(folder, *arguments, "--seed", "7"))[0] for _ in range(2))
    other = lines(generate(folder, *arguments, "--seed", "8"))[0]
    assert first["token_ids"] == second["token_ids"] != other["token_ids"]
    assert first["seed"] == 7


def test_several_answers_to_one_prompt(folder: Path) -> None:
    flags = ["--prompt", "the", "--temperature", "1", "--seed", "3", "--max-tokens", "9"]
    *answers, last = lines(
        generate(folder, "--target", "TARGET", "--draft", "DRAFT", *flags, "--n", "3", "--compare", "--json")
    )
    assert [(a["index"], a["mode"]) for a in answers] == [(j, m) for m in ("off", "on") for j in range(3)]
    assert answers[0]["seed"] == 3
    assert (last["summary"]["num_identical"], last["summary"]["num_outputs"]) == (3, 3)
    alone = lines(generate(folder, "--target", "TARGET", *flags, "--seed", str(answers[2]["seed"]), "--json"))
    assert alone[0]["token_ids"] == answers[2]["token_ids"]
    text = generate(folder, "--target", "TARGET", *flags, "--n", "2").stdout
    assert "--- prompt, speculation off ---" in text
    assert "--- prompt choice 1, speculation off ---" in text


@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        (["--regex", "[a-d]{3}[0-9]"], "[a-d]{3}[0-9]"),
        (["--choice", "the", "--choice", "return"], "the|return"),
        (["--json-schema", "SCHEMA"], r"\s*(true|false)\s*"),
    ],
)
def test_answers_of_a_given_form(folder: Path, flags: list[str], pattern: str) -> None:
    (folder / "schema.json").write_text('{"type": "boolean"}')
    flags = [str(folder / "schema.json") if flag == "SCHEMA" else flag for flag in flags]
    more = ["--prompt", "the def", "--temperature", "1", "--seed", "2", "--max-tokens", "60", "--compare"]
    *answers, last = lines(
        generate(folder, "--target", "TARGET", "--draft", "DRAFT", *more, *flags, "--json")
    )
    assert [bool(re.fullmatch(pattern, a["text"])) for a in answers] == [True, True]
    assert {a["finish_reason"] for a in answers} == {"stop"}
    assert last["summary"]["num_identical"] == 1


def test_text_for_people(folder: Path) -> None:
    result = generate(
        folder,
        "--target",
        "TARGET",
        "--draft",
        "DRAFT",
        "--chat",
        "the def",
        "--max-tokens",
        "12",
        "--compare",
    )
    assert result.exit_code == 0, result.output
    assert "--- speculation off ---" in result.stdout
    assert "--- speculation on ---" in result.stdout
    assert "on (model, k=4)" in result.stdout
    assert "outputs identical: 1 of 1" in result.stdout
    assert "speed, on / off: " in result.stdout
    off, on = result.stdout.split("--- speculation on ---")
    text = off.split("--- speculation off ---\n")[1]
    assert on.lstrip("\n").startswith(text)


def test_several_answers_for_people(folder: Path) -> None:
    result = generate(
        folder, "--target", "TARGET", "--input", "REQUESTS", "--limit", "2", "--max-tokens", "4"
    )
    assert result.exit_code == 0, result.output
    assert "--- one [chat], speculation off ---" in result.stdout
    assert "--- two [code], speculation off ---" in result.stdout
    assert "three" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "TARGET"], "0 of --chat, --prompt and --input"),
        (["--target", "TARGET", "--chat", "a", "--prompt", "b"], "2 of --chat, --prompt and --input"),
        (["--target", "TARGET", "--chat", "a", "--limit", "2"], "--limit without --input"),
        (["--target", "TARGET", "--chat", "a", "--compare"], "--compare without a drafter"),
        (["--target", "TARGET", "--chat", "a", "--speculation", "on"], "--speculation on without a drafter"),
        (["--target", "TARGET", "--chat", "a", "--draft-length", "3"], "--draft-length without a drafter"),
        (["--target", "TARGET", "--chat", "a", "--drafter", "model"], "without a draft model"),
        (["--target", "TARGET", "--chat", "a", "--max-tokens", "0"], "max_tokens = 0"),
        (["--target", "TARGET", "--chat", "a", "--top-p", "2"], "top_p = 2"),
        (["--target", "nowhere.gguf", "--chat", "a", "--top-p", "2"], "top_p = 2.0; expected less than"),
        (["--target", "TARGET", "--chat", "a", "--concurrency", "0"], "'--concurrency': 0 is not in"),
        (["--target", "", "--chat", "a"], "target = ''"),
        (
            ["--target", "TARGET", "--draft", "DRAFT", "--chat", "a", "--compare", "--speculation", "off"],
            "--compare with --speculation off",
        ),
        (["--target", "TARGET", "--prompt", ""], "zero tokens"),
        (["--target", "TARGET", "--chat", "a", "--n", "0"], "n = 0"),
        (["--target", "TARGET", "--chat", "a", "--regex", "[a"], "unclosed character class"),
        (["--target", "TARGET", "--chat", "a", "--regex", "a", "--choice", "b"], "--regex and --choice"),
        (["--target", "TARGET", "--chat", "a", "--json-schema", "absent.json"], "absent.json"),
        (["--target", "TARGET", "--chat", "a", "--json-schema", "REQUESTS"], "json_schema"),
        (["--target", "TARGET", "--input", "missing.jsonl"], "missing.jsonl"),
        (["--target", "nowhere.gguf", "--chat", "a"], "nowhere.gguf"),
    ],
)
def test_mistakes_are_said_and_not_traced(folder: Path, arguments: list[str], message: str) -> None:
    result = generate(folder, *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_context_longer_than_the_models_is_refused(folder: Path) -> None:
    target = str(folder / "target.gguf")
    result = CliRunner().invoke(
        cli, ["generate", "--target", target, "--prompt", "a", "--context-length", "4097"]
    )
    assert result.exit_code == 2
    assert "context_length = 4097; expected at most 4096, what Tiny qwen2 was made for" in result.stderr


def test_the_table_fits_80_columns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = generate(
        folder, "--target", "TARGET", "--drafter", "suffix", "--draft-length", "16", "--prompt", "the",
        "--max-tokens", "3", "--compare",
    )  # fmt: skip
    table = result.stdout[result.stdout.rindex("acceptance  acceptance") :].splitlines()
    assert table[1].split() == ["speculation", "/", "s", "rate", "length", "s", "s", "s"]
    assert "…" not in result.stdout


def test_ctrl_c_ends_with_a_word_and_its_own_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(llm: LLM) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "run", interrupt)
    result = generate(folder, "--target", "TARGET", "--prompt", "the", "--max-tokens", "3", "--json")
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.endswith("Stopped.\n")
    assert "Traceback" not in result.stderr
