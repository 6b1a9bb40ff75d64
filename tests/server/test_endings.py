"""How requests end that do not end by themselves: full queues, clients that leave, time-outs, shutdowns."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import httpx
import openai
import pytest

from tests.server.running import Running, limits, running, settings_of

ENDLESS: dict[str, Any] = {
    "model": "tiny",
    "prompt": "the",
    "max_tokens": 4000,
    "ignore_eos": True,
    "stream": True,
}


LONG = {**limits(), "context_length": 4096}


def serve_one(models: dict[str, str], **server: Any) -> Any:
    one = {**LONG, "max_num_seqs": 1}
    return running(settings_of(**models, **one, server=server))


def until(condition: Any) -> None:
    """Wait for what is bound to happen; the suite's own time-out ends what does not."""
    while not condition():
        time.sleep(0.005)


def is_idle(state: Running) -> bool:
    engine = state.loaded.engine
    return engine.num_running == 0 and engine.num_waiting == 0 and engine.pool.num_used == 0


def first_line(lines: Any) -> str:
    return next(line for line in lines if line)


def test_a_full_server_says_when_to_come_back_and_a_client_that_leaves_makes_room(
    models: dict[str, str],
) -> None:
    with serve_one(models, max_queued=0) as state:
        http, other = state.http(), state.http()
        with http.stream("POST", "/v1/completions", json=ENDLESS) as stream:
            lines = stream.iter_lines()
            assert first_line(lines).startswith("data: ")
            busy = other.post("/v1/completions", json={"model": "tiny", "prompt": "a"})
            assert busy.status_code == 429
            assert int(busy.headers["retry-after"]) >= 1
            assert busy.json()["error"]["code"] == "busy"
            with pytest.raises(openai.RateLimitError):
                state.client().completions.create(model="tiny", prompt="a")
        until(lambda: is_idle(state))
        assert other.post("/v1/completions", json={"model": "tiny", "prompt": "a"}).status_code == 200


def test_who_leaves_while_a_whole_answer_is_made_ends_it(models: dict[str, str]) -> None:
    with serve_one(models) as state:
        body = {**ENDLESS, "stream": False, "n": 1}
        http = state.http()
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json=body, timeout=0.2)
        until(lambda: is_idle(state))
    assert state.report is not None
    assert state.report.is_clean


def test_a_key_has_its_own_limits(models: dict[str, str]) -> None:
    keys = {
        "small": {"key": "key-small", "max_concurrent": 1, "max_queued": 1},
        "large": {"key": "key-large"},
    }
    settings = settings_of(**models, **LONG, server={"api_keys": keys})
    with running(settings) as state:
        small = state.http(headers={"Authorization": "Bearer key-small"})
        large = state.http(headers={"Authorization": "Bearer key-large"})
        brief = {"model": "tiny", "prompt": "a", "max_tokens": 1}
        answers: queue.SimpleQueue[httpx.Response] = queue.SimpleQueue()

        def ask() -> None:
            answers.put(small.post("/v1/completions", json=brief))

        with small.stream("POST", "/v1/completions", json=ENDLESS) as stream:
            lines = stream.iter_lines()  # dropping it would end the stream
            first_line(lines)
            # One of the two waits for its turn, and the other is too many.
            threads = [threading.Thread(target=ask) for _ in range(2)]
            for thread in threads:
                thread.start()
            refused = answers.get()
            assert refused.status_code == 429
            assert "'small'" in refused.json()["error"]["message"]
            assert large.post("/v1/completions", json=brief).status_code == 200
            assert answers.empty()
        assert answers.get().status_code == 200
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_is_ended_in_words(models: dict[str, str], stream: bool) -> None:
    with serve_one(models, request_timeout_s=0.05) as state:
        http = state.http()
        answer = http.post("/v1/completions", json={**ENDLESS, "stream": stream})
        if stream:
            assert '"code":"timeout"' in answer.text.splitlines()[-4]
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "timeout"
        until(lambda: is_idle(state))


def test_a_shutdown_finishes_what_runs(models: dict[str, str]) -> None:
    with serve_one(models) as state:
        http = state.http()
        with http.stream("POST", "/v1/completions", json={**ENDLESS, "max_tokens": 60}) as stream:
            lines = stream.iter_lines()
            first_line(lines)
            state.stop()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
    assert state.report is not None
    assert (state.report.num_finished, state.report.num_ended, state.report.is_clean) == (1, 0, True)


def test_who_comes_during_a_shutdown_is_told_to_go_elsewhere(models: dict[str, str]) -> None:
    with serve_one(models) as state:
        http, other = state.http(), state.http()
        with http.stream("POST", "/v1/completions", json={**ENDLESS, "max_tokens": 2000}) as stream:
            lines = stream.iter_lines()
            first_line(lines)
            state.stop()
            until(lambda: other.get("/health").status_code == 503)
            refused = state.http().post("/v1/completions", json={"model": "tiny", "prompt": "a"})
            rest = [line for line in lines if line]
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) >= 1
        assert rest[-1] == "data: [DONE]"
    assert state.report is not None
    assert (state.report.num_finished, state.report.num_ended, state.report.is_clean) == (1, 0, True)


def test_a_shutdown_reports_what_it_cannot_wait_for(models: dict[str, str]) -> None:
    with serve_one(models, shutdown_timeout_s=0) as state:
        http = state.http()
        with http.stream("POST", "/v1/completions", json=ENDLESS) as stream:
            lines = stream.iter_lines()
            first_line(lines)
            state.stop()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"code":"shutting_down"' in rest[-2]
    assert state.report is not None
    assert (state.report.num_finished, state.report.num_ended) == (0, 1)
