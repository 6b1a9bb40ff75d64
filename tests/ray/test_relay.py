"""What clients see when a replica dies at any point of a response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from paceline.errors import ReplicaLostError
from paceline.ray.asgi_call import carried, messages
from paceline.ray.relay import Relay, lost_replica

Message = dict[str, Any]
Attempt = list[list[Message] | Exception]

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


def start(headers: Any) -> Message:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body(text: str, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}


def relayed(
    *attempts: Attempt, first_within_s: float = 30.0, ask: Callable[..., Any] | None = None
) -> tuple[list[Message], list[bytes]]:
    """Return what was sent, and the body of each attempt; in one request with a body in two parts."""
    bodies: list[bytes] = []
    waiting = list(attempts)

    async def played(scope: dict[str, Any], data: bytes) -> AsyncGenerator[list[Any], None]:
        bodies.append(data)
        for step in waiting.pop(0):
            if isinstance(step, Exception):
                raise step
            yield step

    parts = iter(
        [
            {"type": "http.request", "body": b"one ", "more_body": True},
            {"type": "http.request", "body": b"two", "more_body": False},
        ]
    )
    sent: list[Message] = []

    async def receive() -> Message:
        return next(parts)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    asyncio.run(Relay(ask or played, first_within_s)(scope, receive, send))
    return sent, bodies


def test_a_response_goes_through_as_it_is() -> None:
    whole = [start(JSON), body("{}")]
    sent, bodies = relayed([[start(JSON)], [body("{}")]])
    assert sent == whole
    assert bodies == [b"one two"]


@pytest.mark.parametrize(
    "first", [[lost_replica()], [[start(JSON)], lost_replica()], [[start(EVENTS)], lost_replica()], []]
)
def test_who_was_sent_nothing_gets_another_replicas_answer(first: Attempt) -> None:
    sent, bodies = relayed(first, [[start(JSON), body("{}")]])
    assert sent == [start(JSON), body("{}")]
    assert bodies == [b"one two", b"one two"]


def test_after_two_deaths_the_request_is_not_tried_on_a_third() -> None:
    sent, bodies = relayed([lost_replica()], [lost_replica()], [[start(JSON), body("{}")]])
    assert len(bodies) == 2
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["code"] == "replica_lost"
    assert (b"retry-after", b"1") in sent[0]["headers"]


@pytest.mark.parametrize("end", [[lost_replica()], []])
def test_a_stream_that_had_begun_ends_with_an_error_that_says_so(end: Attempt) -> None:
    sent, bodies = relayed([[start(EVENTS), body("data: 1\n\n", True)], *end])
    assert len(bodies) == 1, "its events could not be taken back"
    assert sent[:2] == [start(EVENTS), body("data: 1\n\n", True)]
    error, done, rest = sent[2]["body"].decode().split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "replica_lost"
    assert (done, rest) == ("data: [DONE]", "")
    assert sent[2]["more_body"] is False


def test_half_of_anything_else_is_cut_off() -> None:
    with pytest.raises(ReplicaLostError):
        relayed([[start(JSON), body("{", True)], lost_replica()])


def test_a_request_that_no_replica_takes_ends_in_time() -> None:
    async def never(scope: dict[str, Any], data: bytes) -> AsyncGenerator[list[Any], None]:
        await asyncio.Event().wait()
        yield []

    sent, _ = relayed(first_within_s=0.05, ask=never)
    assert sent[0]["status"] == 504
    assert json.loads(sent[1]["body"])["error"]["code"] == "timeout"


def test_what_the_application_raises_reaches_who_reads() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start(JSON))
        raise RuntimeError("a fault")

    async def main() -> list[Message]:
        parts = messages(app, {"type": "http"}, b"")
        first = await anext(parts)
        with pytest.raises(RuntimeError, match="a fault"):
            await anext(parts)
        return first

    assert asyncio.run(main()) == [start(JSON)]


def test_who_stops_reading_is_to_the_application_a_client_that_left() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            seen.append((await receive())["body"].decode())
            await send(start(EVENTS))
            while True:
                await send(body("data\n\n", True))
                await asyncio.sleep(0)
        finally:
            seen.append((await receive())["type"])

    async def main() -> None:
        parts = messages(app, {"type": "http"}, b"a question")
        await anext(parts)
        await parts.aclose()

    asyncio.run(main())
    assert seen == ["a question", "http.disconnect"]


def test_of_a_scope_only_what_another_process_can_use_is_carried() -> None:
    scope = {"type": "http", "path": "/", "client": ("127.0.0.1", 1), "app": object(), "state": {}}
    assert carried(scope) == {"type": "http", "path": "/", "client": ("127.0.0.1", 1)}
