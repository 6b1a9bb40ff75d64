"""Puts requests to replicas, and stands in for one that dies: nobody who was sent nothing yet notices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from paceline.administration.http_errors import error_body, error_response
from paceline.errors import DeadlineError, ReplicaLostError
from paceline.ray.asgi_call import carried
from paceline.server.sse import DONE, event

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 2
"""A request that was lost with two replicas may be why they died."""

Ask = Callable[[dict[str, Any], bytes], AsyncGenerator[list[Message], None]]
"""Puts a request to some replica; raises `ReplicaLostError` where that dies, at any time."""


class Relay:
    """ASGI application.

    Args:
        ask: the way to the replicas.
        first_within_s: how long a request may wait for a replica and for the beginning of its answer.
    """

    def __init__(self, ask: Ask, first_within_s: float) -> None:
        self._ask = ask
        self._first_within_s = first_within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        body = await _read(receive)
        for attempt in range(1, MOST_ATTEMPTS + 1):
            response = _Response(send)
            try:
                await self._attempt(carried(scope), body, response)
                return
            except ReplicaLostError as error:
                log.warning("attempt %d at %s %s: %s", attempt, scope["method"], scope["path"], error)
                if response.has_begun:
                    await response.break_off(error)
                    return
                lost = error
            except DeadlineError as error:
                await error_response(error)(scope, receive, send)
                return
        await error_response(lost)(scope, receive, send)

    async def _attempt(self, scope: dict[str, Any], body: bytes, response: _Response) -> None:
        async with aclosing(self._ask(scope, body)) as parts:
            batch = await self._first(parts)
            while batch:
                for message in batch:
                    await response.put(message)
                batch = await anext(parts, [])
        if not response.is_complete:
            raise lost_replica()

    async def _first(self, parts: AsyncGenerator[list[Message], None]) -> list[Message]:
        try:
            async with asyncio.timeout(self._first_within_s):
                return await anext(parts, [])
        except TimeoutError:
            raise DeadlineError(
                given=f"a request that no replica began to answer in {self._first_within_s:g} s",
                expected="an answer by then",
                remedy="Try again later, or start more replicas",
            ) from None


class _Response:
    """What has been sent of a response.

    Its beginning is held until there is something of its body, so that a replica that dies between the two
    can still be stood in for.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._is_stream = False
        self.has_begun = False
        self.is_complete = False

    async def put(self, message: Message) -> None:
        """Send a message, or hold it."""
        if message["type"] == "http.response.start":
            self._start = message
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._is_stream = kind.startswith(b"text/event-stream")
            return
        if self._start is not None:
            self.has_begun = True
            start, self._start = self._start, None
            await self._send(start)
        self.is_complete = not message.get("more_body", False)
        await self._send(message)

    async def break_off(self, error: ReplicaLostError) -> None:
        """End a response that has begun: a stream with an event that says why.

        Raises:
            ReplicaLostError: it is no stream, so that only a cut connection can say it.
        """
        if not self._is_stream:
            raise error
        await self._send(
            {"type": "http.response.body", "body": event(error_body(error)) + DONE, "more_body": False}
        )


def lost_replica() -> ReplicaLostError:
    """Return the error for a replica that died."""
    return ReplicaLostError(
        given="an answer whose replica died",
        expected="one that lives until it is whole",
        remedy="Send the request again; another replica takes its place",
    )


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts)  # the client left; what is left of its request will be refused
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
