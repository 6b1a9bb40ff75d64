"""Refuses bodies that are too large, before they are read to their end."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.administration.http_errors import error_response
from paceline.errors import BodyTooLargeError


class BodyLimit:
    """ASGI middleware.

    Args:
        app: what is behind it.
        max_bytes: the largest body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through whose body is small enough."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        num_bytes = 0
        has_begun = False

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise _TooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, counted, noted)
        except _TooLargeError:
            if not has_begun:
                await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = BodyTooLargeError(
            given="a body that is too large",
            expected=f"at most {self._max_bytes} bytes",
            remedy="Send less, or raise server.max_body_bytes",
        )
        response = error_response(error)
        response.headers["Connection"] = "close"  # nobody reads the rest of it
        await response(scope, receive, send)


class _TooLargeError(BaseException):
    """On its way through whatever catches exceptions; never leaves this module."""
