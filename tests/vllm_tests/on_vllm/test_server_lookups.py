"""A configuration without a draft model on the real vLLM: look-ups by route; and how the server leaves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm_tests.on_vllm.serving import WAIT_S, Serving, drafts, steps, values

ROUTES = {
    "chat": {"speculation": "on", "draft_length": 4},
    "code": {"speculation": "on", "draft_length": 2, "drafters": ["suffix"]},
    "batch": {"speculation": "off"},
}


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    vllm = {**values(model)["vllm"], "speculative": {"prompt_lookup_min": 1, "prompt_lookup_max": 3}}
    del vllm["draft"]
    found = Serving(tmp_path_factory.mktemp("served"), model, draft=None, routes=ROUTES, vllm=vllm)
    try:
        found.start()
        yield found
    finally:
        found.close()


def test_routes_look_up_as_far_as_each_allows_and_a_flip_ends_it(server: Serving) -> None:
    before = server.series()
    answers = {route: server.ask(f"tiny:{route}", max_tokens=48).json() for route in ROUTES}
    most = {route: max(steps(answer), default=0) for route, answer in answers.items()}
    assert most == {"chat": 4, "code": 2, "batch": 0}
    assert len({answer["choices"][0]["text"] for answer in answers.values()}) == 1
    server.admin("PATCH", "/admin/routes/code", json={"speculation": "off"})
    try:
        flipped = server.ask("tiny:code", max_tokens=48).json()
    finally:
        server.admin("DELETE", "/admin/routes/code/overlay")
    assert drafts(flipped) == (0, 0)
    assert flipped["choices"][0]["text"] == answers["code"]["choices"][0]["text"]
    after = server.series()
    for route in ROUTES:
        labels = f'{{drafter="suffix",route="{route}"}}'
        grown = [
            after.get(f"paceline_{name}_tokens_total{labels}", 0.0)
            - before.get(f"paceline_{name}_tokens_total{labels}", 0.0)
            for name in ("drafted", "accepted")
        ]
        assert tuple(grown) == drafts(answers[route])
    # vLLM's own counters are of all routes together.
    (own,) = (name for name in after if name.startswith("vllm:spec_decode_num_draft_tokens_total"))
    assert after[own] - before.get(own, 0.0) == sum(drafts(answer)[0] for answer in answers.values())


def test_what_it_was_not_started_for_is_refused(server: Serving) -> None:
    asked = server.ask("tiny:chat", speculation={"drafter": "model"})
    assert (asked.status_code, asked.json()["error"]["code"]) == (400, "invalid_parameter")


def test_an_interrupt_to_all_processes_ends_streams_and_leaves_nothing(server: Serving) -> None:
    """What Ctrl-C does in a terminal: engine core and server hear of it at the same moment."""
    has_begun = threading.Semaphore(0)
    ends: list[dict[str, Any]] = []

    def read(model: str) -> None:
        events = server.stream(model, 400)
        last = next(events)
        has_begun.release()
        for event in events:
            last = event
        ends.append(last)

    threads = [threading.Thread(target=read, args=(f"tiny:{route}",)) for route in (*ROUTES, *ROUTES)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert has_begun.acquire(timeout=WAIT_S)
    server.stop(signal.SIGINT, is_for_all=True)
    for thread in threads:
        thread.join(WAIT_S)
    assert len(ends) == len(threads), "each stream has an end, whichever it is"
    for end in ends:
        assert "error" in end or end["choices"] == [] or end["choices"][0]["finish_reason"], end
