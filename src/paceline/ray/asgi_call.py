"""One HTTP request put to an ASGI application without HTTP: its messages, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Scope

CARRIED = (
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path",
    "headers", "client", "server",
)  # fmt: skip
"""What of a scope says what is asked for, and by whom; the rest belongs to the process that it came to."""


def carried(scope: Scope) -> dict[str, Any]:
    """Return what of a scope another process needs."""
    return {key: scope[key] for key in CARRIED if key in scope}


async def messages(
    app: ASGIApp, scope: Mapping[str, Any], body: bytes
) -> AsyncGenerator[list[Message], None]:
    """Yield the messages of a response, all that there are at a time.

    Closing the iterator, or cancelling whoever reads it, is to the application that its client has gone.

    Raises:
        Exception: what the application raised.
    """
    waiting: list[Message] = []
    something = asyncio.Event()
    is_gone = asyncio.Event()
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        message = next(given, None)
        if message is None:
            await is_gone.wait()
            return {"type": "http.disconnect"}
        return message

    async def send(message: Message) -> None:
        waiting.append(message)
        something.set()

    running = asyncio.ensure_future(app(dict(scope), receive, send))
    running.add_done_callback(lambda _: something.set())
    try:
        while True:
            await something.wait()
            something.clear()
            if waiting:
                batch = waiting.copy()
                waiting.clear()
                yield batch
            elif running.done():
                running.result()
                return
    finally:
        is_gone.set()
        if not running.done():
            running.cancel()
            with suppress(BaseException):
                await running
