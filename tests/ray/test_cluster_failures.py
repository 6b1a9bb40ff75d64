"""What dies, comes again: replicas, the keeper of the routes, and the whole server with what was changed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.ray.running import (
    ADMIN,
    MODEL,
    Running,
    descendants,
    replicas_of,
    scrape,
    serving,
    sse_events,
    total,
    until,
    write,
)

pytestmark = pytest.mark.models

NUM_TOKENS = 48
PROMPTS = [f"The number {number} is" for number in range(6)]


def body_of(prompt: str, **more: Any) -> dict[str, Any]:
    limits = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 0.0}
    return {"model": f"{MODEL}:plain", "prompt": prompt, **limits, **more}


def whole(http: httpx.Client, prompt: str) -> str:
    answer = http.post("/v1/completions", json=body_of(prompt))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def streamed(http: httpx.Client, prompt: str) -> tuple[str, str | None]:
    """Return the text of a stream, and the code of the error that ended it, if one did."""
    text, code = "", None
    with http.stream("POST", "/v1/completions", json=body_of(prompt, stream=True)) as answer:
        assert answer.status_code == 200
        for event in sse_events(answer):
            assert code is None, "nothing comes after an error"
            if "error" in event:
                code = event["error"]["code"]
            else:
                text += event["choices"][0]["text"]
    return text, code


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ray") / "paceline.yaml")


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Running]:
    with serving(path) as state:
        yield state


def test_only_streams_of_a_killed_replica_are_lost_and_it_is_replaced(server: Running) -> None:
    with server.http() as http:
        expected = {prompt: whole(http, prompt) for prompt in PROMPTS}
        changed = http.patch("/admin/routes/code", json={"speculation": "off"}, headers=ADMIN)
        assert changed.status_code == 200
        victim = server.pids()[0]
        wholes, streams = under_load(http, lambda: os.kill(victim, signal.SIGKILL))

        # Answers that come whole are none the worse: those that were lost were computed again elsewhere.
        for prompt, text in wholes:
            assert text == expected[prompt]
        outcomes = Counter(code for _, (_, code) in streams)
        assert set(outcomes) <= {None, "replica_lost"}, outcomes
        for prompt, (text, code) in streams:
            assert text == expected[prompt] if code is None else expected[prompt].startswith(text)
        # At most what one replica had at once: the others' streams never notice.
        assert 1 <= outcomes["replica_lost"] <= 6, outcomes

        until(lambda: total(scrape(http), "paceline_replicas_lost_total") == 1)
        until(lambda: total(scrape(http), "paceline_replicas", state="ready") == 2)
        after = scrape(http)
        assert set(replicas_of(after, "paceline_steps_total")) == {"0", "1"}, "it has its number again"
        pids = server.pids()
        assert len(pids) == 2
        assert victim not in pids
        listed = http.get("/admin/routes", headers=ADMIN).json()["routes"]
        (code,) = (route for route in listed if route["name"] == "code")
        states = {number: one["report"]["state"] for number, one in code["replicas"].items()}
        assert states == {"0": "off", "1": "off"}, "the new one knows of the change"
        for prompt in PROMPTS:
            assert whole(http, prompt) == expected[prompt]


def under_load(http: httpx.Client, kill: Callable[[], None]) -> tuple[list[Any], list[Any]]:
    """Keep both replicas busy with both kinds of answers, and kill in the middle; returns all outcomes."""
    num_done, is_half_done = 0, threading.Event()

    def note(_: Future[Any]) -> None:
        nonlocal num_done
        num_done += 1
        if num_done == 8:
            is_half_done.set()

    jobs: list[tuple[str, Future[Any]]] = []
    with ThreadPoolExecutor(8) as pool:
        for number in range(48):
            prompt = PROMPTS[number % len(PROMPTS)]
            job = pool.submit(streamed if number % 2 else whole, http, prompt)
            job.add_done_callback(note)
            jobs.append((prompt, job))
        assert is_half_done.wait(90)
        # Both have work, and so has the one that is about to die.
        until(lambda: min(replicas_of(scrape(http), "paceline_sequences_running").values()) >= 2, 60)
        kill()
        found = [(prompt, job.result()) for prompt, job in jobs]
    return found[::2], found[1::2]


def test_changes_outlive_their_keeper_and_the_whole_server(server: Running, path: Path) -> None:
    with server.http() as http:
        assert change(http, "code", speculation="off") == 200
        (keeper,) = server.pids("ray::Hub")
        os.kill(keeper, signal.SIGKILL)
        # Requests do without it, and administration waits for the one that takes its place.
        whole(http, PROMPTS[0])
        until(lambda: change(http, "chat", max_draft_length=3) == 200)
        assert overlay(http) == {"code": {"speculation": "off"}, "chat": {"max_draft_length": 3}}
        whole(http, PROMPTS[0])
        below = descendants(server.process.pid)
        assert server.stop(signal.SIGINT) == 0
        assert "stopped: 0 answers finished, 0 ended unfinished" in server.lines
        # Ray ends its own by signal; the last may be on its way when the command has gone.
        until(lambda: not [pid for pid in below if Path(f"/proc/{pid}").exists()])
    with serving(path, num_replicas=1) as later, later.http() as http:
        assert overlay(http) == {"code": {"speculation": "off"}, "chat": {"max_draft_length": 3}}
        listed = http.get("/admin/routes", headers=ADMIN).json()["routes"]
        in_force = {route["name"]: route["in_force"] for route in listed}
        assert in_force["code"]["speculation"] == "off"
        assert in_force["chat"]["max_draft_length"] == 3
        finish_at_the_end(later, http)


def finish_at_the_end(server: Running, http: httpx.Client) -> None:
    """A stream that runs when the server is told to stop comes to its own end; later requests are refused."""
    text = ""
    with http.stream(
        "POST", "/v1/completions", json=body_of(PROMPTS[0], stream=True, max_tokens=300)
    ) as answer:
        for event in sse_events(answer):
            if not text:
                server.process.send_signal(signal.SIGTERM)
                until(lambda: any(line.startswith("stopping") for line in server.lines))
                with httpx.Client(base_url=server.url, trust_env=False, timeout=30) as other:
                    until(lambda: other.post("/v1/completions", json=body_of("x")).status_code == 503)
                    refused = other.post("/v1/completions", json=body_of("x"))
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            text += event["choices"][0]["text"] or " "
            last = event
    assert last["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(60) == 0
    assert "stopped: 1 answers finished, 0 ended unfinished" in server.lines


def change(http: httpx.Client, route: str, **values: Any) -> int:
    return http.patch(f"/admin/routes/{route}", json=values, headers=ADMIN).status_code


def overlay(http: httpx.Client) -> dict[str, dict[str, Any]]:
    listed = http.get("/admin/routes", headers=ADMIN).json()["routes"]
    found = {
        route["name"]: {key: entry["value"] for key, entry in route["overlay"].items()} for route in listed
    }
    return {name: entries for name, entries in found.items() if entries}
