"""Counts responses by endpoint and status, and publishes all that is counted."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.errors import ShutDownError
from paceline.metrics.snapshot import take_snapshot
from paceline.server.service import Service

OTHER = "other"

router = APIRouter(tags=["operation"])


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Show all metrics in Prometheus's text form."""
    service: Service = request.app.state.service
    with contextlib.suppress(ShutDownError):  # then the engine was last looked at before it stopped
        service.collector.snapshot = await service.llm.runtime.call(take_snapshot)
    return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)


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
