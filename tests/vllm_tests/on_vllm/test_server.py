"""`paceline vllm serve`: vLLM's own OpenAI server with routes, their administration, and what they did."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm_tests.on_vllm.serving import (
    ADMIN,
    COMMAND,
    KEY,
    OTHER_KEY,
    TOKEN,
    WAIT_S,
    Serving,
    drafts,
    steps,
    until,
)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    found = Serving(tmp_path_factory.mktemp("served"), model)
    found.start()
    yield found
    found.close()


def paceline(server: Serving, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, env=environ, timeout=60,
    )  # fmt: skip


def test_each_way_of_naming_a_route_leads_to_it_and_its_drafts(server: Serving) -> None:
    by_header = server.ask(headers={"X-Paceline-Route": "batch"})
    by_suffix = server.ask("tiny:code")
    by_key = server.ask(key=KEY)
    by_default = server.ask()
    answers = {"batch": by_header, "code": by_suffix, "key": by_key, "chat": by_default}
    assert {name: one.status_code for name, one in answers.items()} == dict.fromkeys(answers, 200)
    routes = {name: one.headers["X-Paceline-Route"] for name, one in answers.items()}
    assert routes == {"batch": "batch", "code": "code", "key": "code", "chat": "chat"}
    most = {name: max(steps(one.json()), default=0) for name, one in answers.items()}
    assert most == {"batch": 0, "code": 2, "key": 2, "chat": 4}
    texts = {one.json()["choices"][0]["text"] for one in answers.values()}
    assert len(texts) == 1, "drafts change no answer"


def test_chats_have_routes_too(server: Serving) -> None:
    body: dict[str, Any] = {
        "model": "tiny:batch", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 8,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {OTHER_KEY}"}
    answer = server.http.post("/v1/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.headers["X-Paceline-Route"]) == (200, "batch")
    names = [one["id"] for one in server.http.get("/v1/models", headers=headers).json()["data"]]
    assert names == ["tiny", "tiny:chat", "tiny:code", "tiny:batch"]


def test_what_is_not_there_is_said(server: Serving) -> None:
    unknown = server.ask(headers={"X-Paceline-Route": "none"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "route_not_found")
    suffix = server.ask("tiny:none")
    assert (suffix.status_code, suffix.json()["error"]["code"]) == (404, "model_not_found")
    assert server.ask(key="not-a-key").status_code == 401
    assert server.http.get("/v1/models").status_code == 401


def test_a_request_asks_for_less_than_its_route_allows(server: Serving) -> None:
    off = server.ask("tiny:chat", speculation={"enabled": False}).json()
    assert drafts(off) == (0, 0)
    shorter = server.ask("tiny:chat", speculation={"max_draft_length": 1}).json()
    assert set(steps(shorter)) == {1}
    more = server.ask("tiny:chat", speculation={"max_draft_length": 5})
    assert (more.status_code, more.json()["error"]["code"]) == (400, "invalid_parameter")


def test_one_page_of_metrics_has_vllms_and_ours_and_ours_add_up(server: Serving) -> None:
    before = server.series()
    asked = ["tiny:chat", "tiny:code", "tiny:batch", "tiny:chat"]
    answers = [server.ask(model, max_tokens=20 + 5 * number).json() for number, model in enumerate(asked)]
    after = server.series()
    assert any(name.startswith("vllm:generation_tokens_total") for name in after)

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    for route in ("chat", "code", "batch"):
        own = [answer for model, answer in zip(asked, answers, strict=True) if model == f"tiny:{route}"]
        drafted, accepted = (sum(column) for column in zip(*map(drafts, own), strict=True))
        labels = f'{{drafter="model",route="{route}"}}'
        assert grown(f"paceline_drafted_tokens_total{labels}") == drafted
        assert grown(f"paceline_accepted_tokens_total{labels}") == accepted
        tokens = sum(answer["usage"]["completion_tokens"] for answer in own)
        assert grown(f'paceline_output_tokens_total{{route="{route}"}}') == tokens
        assert (drafted > 0) == (route != "batch")
        assert after[f'paceline_route_state{{route="{route}",state="off"}}'] == float(route == "batch")


def test_a_switch_reaches_streams_that_run_and_loses_none(server: Serving) -> None:
    num_tokens = 96

    def run(switches: bool) -> list[tuple[str, int, list[int]]]:
        found: list[tuple[str, int, list[int]] | None] = [None, None, None]
        has_begun = threading.Semaphore(0)

        def read(index: int, model: str) -> None:
            text, usage, drafted = "", 0, []
            for number, event in enumerate(server.stream(model, num_tokens)):
                if event["choices"]:
                    text += event["choices"][0]["text"]
                if event.get("usage"):
                    usage = event["usage"]["completion_tokens"]
                drafted += steps(event)
                if number == 4:
                    has_begun.release()
            found[index] = (text, usage, drafted)

        models = ("tiny:chat", "tiny:chat", "tiny:batch")
        threads = [threading.Thread(target=read, args=(i, model)) for i, model in enumerate(models)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert has_begun.acquire(timeout=WAIT_S)
        if switches:
            changed = server.admin("PATCH", "/admin/routes/chat", json={"speculation": "off"})
            assert changed["in_force"]["speculation"] == "off"
        for thread in threads:
            thread.join()
        return [one for one in found if one is not None]

    plain = run(switches=False)
    try:
        switched = run(switches=True)
        until(lambda: server.route("chat")["report"]["state"] == "off", WAIT_S)
        assert server.route("chat")["pending_engines"] == []
        decisions = server.admin("GET", "/admin/routes/chat/decisions")["decisions"]
        assert (decisions[-1]["by"], decisions[-1]["after"]) == ("admin", "off")
    finally:
        server.admin("DELETE", "/admin/routes/chat/overlay")
    assert [one[:2] for one in switched] == [one[:2] for one in plain]
    assert [usage for _, usage, _ in plain] == [num_tokens] * 3
    for before, after in zip(plain[:2], switched[:2], strict=True):
        assert 0 < sum(after[2]) < sum(before[2]) / 2
    assert sum(plain[2][2]) == sum(switched[2][2]) == 0


def test_a_changed_file_is_followed_and_a_broken_one_refused(server: Serving) -> None:
    try:
        changed = {**server.values, "routes": {**server.values["routes"], "code": {"speculation": "off"}}}
        server.write(changed)
        until(lambda: server.route("code")["in_force"]["speculation"] == "off", WAIT_S)
        assert drafts(server.ask("tiny:code").json()) == (0, 0)
        server.path.write_text("routes: {code: {speculation: [}}")
        until(lambda: server.admin("GET", "/admin/routes")["config_error"] is not None, WAIT_S)
        assert server.route("code")["in_force"]["speculation"] == "off"
        assert server.ask("tiny:code").status_code == 200
    finally:
        server.write(server.values)
    until(lambda: server.route("code")["in_force"]["speculation"] == "on", WAIT_S)
    assert server.admin("GET", "/admin/routes")["config_error"] is None
    assert drafts(server.ask("tiny:code").json())[0] > 0


def test_the_commands_for_routes_work_on_it(server: Serving) -> None:
    listed = paceline(server, "routes", "list", "--config", str(server.path))
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["ROUTE", "chat", "code", "batch"]
    explained = paceline(server, "routes", "explain", "batch", "--config", str(server.path))
    assert "off" in explained.stdout
    second = paceline(server, "vllm", "serve", "--config", str(server.path))
    assert second.returncode == 2
    assert "another server" in second.stderr


def test_changes_outlive_the_server(server: Serving) -> None:
    server.admin("PATCH", "/admin/routes/chat", json={"draft_length": 1})
    assert server.stop() == 0
    server.start()
    shown = server.route("chat")
    assert (shown["in_force"]["draft_length"], shown["overlay"]["draft_length"]["by"]) == (1, "admin")
    assert set(steps(server.ask("tiny:chat").json())) == {1}
    assert TOKEN not in server.log.read_text()
    assert server.http.get("/admin/routes", headers={**ADMIN, "Authorization": "Bearer x"}).status_code == 401
