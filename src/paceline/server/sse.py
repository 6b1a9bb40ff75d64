"""Responses that end when the client goes: server-sent events, and answers that come whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from json.encoder import encode_basestring
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

T = TypeVar("T")

CLIENT_GONE = 499
"""Status for the log alone: nobody reads it."""
DIRECT_SEND = "paceline.send"
"""Key in a request's scope; see `DirectSend`."""
DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(value: Any) -> bytes:
    """Return one server-sent event with a JSON document."""
    return b"data: " + _encode(value).encode() + b"\n\n"


class TextEvents:
    """Server-sent events that differ in one text, and are put into JSON but for that text once.

    Args:
        empty: the event with an empty text, which is the last empty string in it.
    """

    def __init__(self, empty: bytes) -> None:
        self._before, _, self._after = empty.rpartition(b'""')

    def of(self, text: str) -> bytes:
        """Return the event with this text."""
        return self._before + encode_basestring(text).encode() + self._after


class EventStream(Response):
    """Server-sent events, each sent at once. A client that goes stops them.

    Args:
        events: whole events, `DONE` at the end of the last and nowhere else.
        close: called at the end, whatever the end is.
        headers: of the response.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], close: Callable[[], None], headers: dict[str, str]
    ) -> None:
        super().__init__(None, 200, {**headers, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the last event, or until nobody listens."""
        try:
            await unless_gone(self._send(scope, send), receive)
        finally:
            self._close()

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        send = scope.get(DIRECT_SEND, send)
        async for part in self._events:
            await send({"type": "http.response.body", "body": part, "more_body": not part.endswith(DONE)})


class DirectSend:
    """ASGI middleware that lets streams send past all that is behind it, which looks at their heads alone.

    Args:
        app: what is behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Keep where it sends to."""
        scope[DIRECT_SEND] = send
        await self._app(scope, receive, send)


async def whole_unless_gone(request: Request, answer: Awaitable[T]) -> T | None:
    """Await an answer, or cancel it when its client goes; None then."""
    return await unless_gone(answer, request.receive)


async def unless_gone(work: Awaitable[T], receive: Receive) -> T | None:
    """Await work, or cancel it when the client of a request whose body was read disconnects; None then."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            if not task.done():
                task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
