"""Captured traffic: a share of what was answered, for its owner alone, within its bytes, and nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.input_file import read_requests
from paceline.config.server import CaptureSettings
from paceline.records import FinishReason, GenerationResult, SamplingParams, SpeculationStats, Timing, Usage
from paceline.server.capture import Capture
from tests.server.running import limits, running, settings_of

SECRET = "the def of a secret"


def result(name: str, text: str = "text", index: int = 0) -> GenerationResult:
    return GenerationResult(
        name, "chat", text, (1,), FinishReason.STOP, Usage(1, 1), SpeculationStats(None),
        Timing(0.1, 0.1, 0.0, 0.0, 0), seed=1, index=index,
    )  # fmt: skip


def test_the_drawn_share_of_the_named_routes(tmp_path: Path) -> None:
    settings = CaptureSettings(path=tmp_path / "t.jsonl", share=0.25, routes=("chat",))
    capture = Capture(settings, random.Random(1))
    drawn = sum(capture.wants("chat") for _ in range(4000))
    assert 900 < drawn < 1100  # by chance outside these in fewer than one of 200 seeds; this one is fixed
    assert not any(capture.wants("code") for _ in range(100))


def test_two_files_take_turns_within_their_bytes_and_modes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.touch(0o644)
    capture = Capture(CaptureSettings(path=path, share=1.0, max_bytes=10_000))
    for number in range(200):
        capture.write({"prompt": "a" * 100}, "chat", SamplingParams(), [result(f"r{number}")])
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["t.jsonl", "t.jsonl.1"]
    assert sum(file.stat().st_size for file in files) <= 10_000
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    names = [request.id for file in reversed(files) for request in read_requests(file)]
    assert names == [f"r{number}" for number in range(200 - len(names), 200)]


def test_a_line_that_no_encoding_has_is_written_all_the_same(tmp_path: Path) -> None:
    capture = Capture(CaptureSettings(path=tmp_path / "t.jsonl", share=1.0))
    capture.write(
        {"prompt": "\ud800 \u2028"}, "chat", SamplingParams(seed=3), [result("b", index=1), result("a")]
    )
    line = json.loads((tmp_path / "t.jsonl").read_text())
    assert line["prompt"] == "\ud800 \u2028"
    assert line["sampling"] == {"seed": 3}
    assert len(line["answers"]) == 2


@pytest.mark.parametrize("is_on", [True, False])
def test_what_was_asked_and_answered_is_there_and_nowhere_else(
    models: dict[str, str], tmp_path: Path, is_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "traffic.jsonl"
    capture = {"capture": {"path": str(path), "share": 1.0}} if is_on else {}
    more = {"server": {"state_path": str(tmp_path / "state.sqlite")}}
    with running(settings_of(**models, **limits(), **capture, **more)) as state:
        http = state.http()
        body: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "seed": 2, "ignore_eos": True}
        messages = [{"role": "user", "content": SECRET}]
        answer = http.post("/v1/chat/completions", json={**body, "messages": messages}).json()
        http.post("/v1/completions", json={**body, "prompt": [SECRET, "b"], "stream": True, "n": 2})
        http.post("/v1/completions", json={**body, "prompt": SECRET, "unknown": SECRET})
        assert SECRET not in http.get("/metrics").text
        assert SECRET not in http.get("/status").text
    assert SECRET not in caplog.text
    with_secret = [file for file in tmp_path.iterdir() if SECRET.encode() in file.read_bytes()]
    assert with_secret == ([path] if is_on else [])
    if not is_on:
        return
    chat, first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert chat["messages"] == messages
    assert chat["answers"][0]["text"] == answer["choices"][0]["message"]["content"]
    assert (first["prompt"], second["prompt"]) == (SECRET, "b")
    assert len(first["answers"]) == 2
    assert [one.route for one in read_requests(path)] == ["default"] * 3
