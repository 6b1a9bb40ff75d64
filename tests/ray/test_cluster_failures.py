"""What dies, comes again: replicas, the keeper of the routes, and the whole server with what was changed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.ray.running import (
    ADMIN,
    MODEL,
    Running,
    configuration,
    descendants,
    replicas_of,
    scrape,
    serving,
    sse_events,
    total,
    until,
    write,
)

from paceline.models.download import resolve

pytestmark = pytest.mark.models

NUM_TOKENS = 48
LONG = 400
"""Tokens of a stream that is far from its end when a replica is killed, moments after it began."""
PROMPTS = [f"The number {number} is" for number in range(3)]


def body_of(prompt: str, **more: Any) -> dict[str, Any]:
    limits = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 0.0}
    return {"model": f"{MODEL}:plain", "prompt": prompt, **limits, **more}


def whole(http: httpx.Client, prompt: str, num_tokens: int = NUM_TOKENS) -> str:
    answer = http.post("/v1/completions", json=body_of(prompt, max_tokens=num_tokens))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@dataclass
class Stream:
    """One answer as it comes."""

    prompt: str
    text: str = ""
    replica: str | None = None
    """Who serves it, once it has begun."""
    code: str | None = None
    """Of the error that ended it, if one did."""
    has_begun: threading.Event = field(default_factory=threading.Event)
    num_events: int = 0
    """Of a token each, or of a few."""

    @property
    def is_early(self) -> bool:
        """Whether it has begun and is far from its end."""
        return self.code is None and 0 < self.num_events < LONG // 2

    def read(self, http: httpx.Client) -> None:
        """Ask for it and read it to its end."""
        body = body_of(self.prompt, max_tokens=LONG, stream=True)
        try:
            with http.stream("POST", "/v1/completions", json=body) as answer:
                assert answer.status_code == 200
                for event in sse_events(answer):
                    assert self.code is None, "nothing comes after an error"
                    self.replica = answer.headers["X-Paceline-Replica"]
                    if "error" in event:
                        self.code = event["error"]["code"]
                    else:
                        self.text += event["choices"][0]["text"]
                        self.num_events += 1
                    self.has_begun.set()
        finally:
            self.has_begun.set()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder for all that servers of this module keep."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    model = resolve(MODEL)
    request.getfixturevalue("cache")  # only now: the model is in the one of before
    server = {**configuration()["server"], "model_name": MODEL}
    path = tmp_path_factory.mktemp("ray") / "paceline.yaml"
    return write(path, target=str(model), server=server, acceptance_history=True)


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Running]:
    with serving(path) as state:
        yield state


def test_only_streams_of_a_killed_replica_are_lost_and_it_is_replaced(server: Running) -> None:
    with server.http() as http, ThreadPoolExecutor(16) as pool:
        expected = dict(zip(PROMPTS, pool.map(lambda one: whole(http, one, LONG), PROMPTS), strict=True))
        changed = http.patch("/admin/routes/code", json={"speculation": "off"}, headers=ADMIN)
        assert changed.status_code == 200
        victim = server.pids()[0]
        wholes, streams, begun = under_load(http, pool, lambda: os.kill(victim, signal.SIGKILL))

        # Answers that come whole are none the worse: those that were lost were computed again elsewhere.
        for prompt, text in wholes:
            assert expected[prompt].startswith(text)
        lost = {number for number, stream in enumerate(streams) if stream.code is not None}
        for number, stream in enumerate(streams):
            full = expected[stream.prompt]
            assert full.startswith(stream.text) if number in lost else stream.text == full
        assert {streams[number].code for number in lost} == {"replica_lost"}
        # One replica lost all the streams that it had begun, and the other none.
        (dead,) = {streams[number].replica for number in lost}
        assert {number for number, replica in begun.items() if replica == dead} <= lost
        # Others may have been lost too, at their beginning or near their end; but no more run at once.
        assert len(lost) <= configuration()["max_num_seqs"]

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
            assert expected[prompt].startswith(whole(http, prompt))


def under_load(
    http: httpx.Client, pool: ThreadPoolExecutor, kill: Callable[[], None]
) -> tuple[list[tuple[str, str]], list[Stream], dict[int, str]]:
    """Kill a replica once both have begun streams, while answers that come whole are under way.

    Returns:
        Prompts and texts of the whole answers; all streams; and which of these were under way, with whom.
    """
    is_done = threading.Event()

    def ask(first: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        while not is_done.is_set():
            prompt = PROMPTS[(first + len(found)) % len(PROMPTS)]
            found.append((prompt, whole(http, prompt)))
        return found

    streams: list[Stream] = []
    reading: list[Future[None]] = []

    def stream() -> Stream:
        streams.append(Stream(PROMPTS[len(streams) % len(PROMPTS)]))
        reading.append(pool.submit(streams[-1].read, http))
        return streams[-1]

    asking = [pool.submit(ask, first) for first in range(4)]
    try:
        while min([one.replica for one in streams if one.is_early].count(n) for n in ("0", "1")) < 2:
            assert len(streams) < 24, "one replica gets no streams"
            assert stream().has_begun.wait(90)
        begun = {number: one.replica or "" for number, one in enumerate(streams) if one.is_early}
        stream(), stream()  # these have not begun, or just
        kill()
        for one in reading:
            one.result()
    finally:
        is_done.set()
    return [answer for one in asking for answer in one.result()], streams, begun


def test_changes_outlive_their_keeper_and_the_whole_server(server: Running, path: Path, cache: Path) -> None:
    with server.http() as http:
        assert change(http, "code", speculation="off") == 200
        (keeper,) = server.pids("ray::Hub")
        os.kill(keeper, signal.SIGKILL)
        # Requests do without it, and administration waits for the one that takes its place.
        whole(http, PROMPTS[0])
        until(lambda: change(http, "chat", max_draft_length=3) == 200)
        assert overlay(http) == {"code": {"speculation": "off"}, "chat": {"max_draft_length": 3}}
        ask_all_replicas(http)
        below = descendants(server.process.pid)
        assert server.stop(signal.SIGINT) == 0
        assert "stopped: 0 answers finished, 0 ended unfinished" in server.lines
        assert not [line for line in server.lines if "at the next start" in line], "the file is as it was"
        # Ray ends its own by signal; the last may be on its way when the command has gone.
        until(lambda: not [pid for pid in below if Path(f"/proc/{pid}").exists()])
    kept = sorted(file.name.split(".", 1)[1] for file in (cache / "acceptance").glob("*.json"))
    assert kept == ["0.json", "1.json"], "each replica wrote down what it had learned"
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


def ask_all_replicas(http: httpx.Client) -> None:
    seen = set()

    def is_so() -> bool:
        answer = http.post("/v1/completions", json=body_of(PROMPTS[0], max_tokens=1))
        seen.add(answer.headers["X-Paceline-Replica"])
        return seen == {"0", "1"}

    until(is_so)


def change(http: httpx.Client, route: str, **values: Any) -> int:
    return http.patch(f"/admin/routes/{route}", json=values, headers=ADMIN).status_code


def overlay(http: httpx.Client) -> dict[str, dict[str, Any]]:
    listed = http.get("/admin/routes", headers=ADMIN).json()["routes"]
    found = {
        route["name"]: {key: entry["value"] for key, entry in route["overlay"].items()} for route in listed
    }
    return {name: entries for name, entries in found.items() if entries}
