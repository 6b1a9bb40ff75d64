"""Counts responses by endpoint and status."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OTHER = "other"


class CountResponses:
    """ASGI middleware.

    Args:
        app: what is behind it.
        registry: where the counter is registered.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._counter = Counter(
            "paceline_http_responses",
            "Responses, by endpoint and status.",
            ("endpoint", "status"),
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count a response when it begins."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # A path as it was asked for could be anything; that of a route is one of a few.
                path = getattr(scope.get("route"), "path", OTHER)
                self._counter.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)
