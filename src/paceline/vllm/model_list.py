"""The list of models with each route beside the model, as Paceline's own server has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ModelList:
    """ASGI application for the one path.

    Args:
        app: vLLM's.
        names: gives the name of the model, and the routes.
    """

    def __init__(self, app: ASGIApp, names: Callable[[], tuple[str, Sequence[str]]]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as vLLM does, with more names."""
        begin: Message | None = None
        parts: list[bytes] = []

        async def gathered(message: Message) -> None:
            nonlocal begin
            if message["type"] == "http.response.start":
                begin = message
                return
            parts.append(message.get("body", b""))
            if message.get("more_body", False) or begin is None:
                return
            body = b"".join(parts)
            if begin["status"] == 200:
                body = self._with_routes(body)
                MutableHeaders(scope=begin)["content-length"] = str(len(body))
            await send(begin)
            await send({"type": "http.response.body", "body": body})

        await self._app(scope, receive, gathered)

    def _with_routes(self, body: bytes) -> bytes:
        try:
            found: Any = json.loads(body)
            cards = found["data"]
            served, routes = self._names()
            own = next(card for card in cards if card["id"] == served)
        except (ValueError, LookupError, TypeError, StopIteration):
            return body
        found["data"] = [*cards, *({**own, "id": f"{served}:{route}"} for route in routes)]
        return json.dumps(found, ensure_ascii=False).encode()
