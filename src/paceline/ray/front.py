"""What Ray Serve's proxy hands requests to: a small process that puts them to replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline.administration.body_limit import BodyLimit
from paceline.config.server import ServerSettings
from paceline.ray.relay import Relay, lost_replica

LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError)
"""How Ray says that whoever was computing something is gone."""
LATER_S = 10.0
"""A replica ends a request that takes too long itself; this is for those that no replica takes."""


class Front:
    """A deployment of Ray Serve.

    Args:
        replicas: the way to them.
        server: limits of the server.
    """

    def __init__(self, replicas: DeploymentHandle, server: ServerSettings) -> None:
        self._replicas = replicas.options(stream=True)
        relay = Relay(self._ask, server.request_timeout_s + LATER_S)
        self._app = BodyLimit(relay, server.max_body_bytes)
        self._num_open = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    async def __call__(self, request: Request) -> Response:
        """Answer a request, with what a replica answers."""
        return _Passed(self._counted)

    async def idle(self, within_s: float) -> bool:
        """Wait until no request is open; returns whether that became so in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._is_idle.wait()
        return not self._num_open

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._num_open += 1
        self._is_idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_open -= 1
            if not self._num_open:
                self._is_idle.set()

    async def _ask(self, scope: dict[str, Any], body: bytes) -> AsyncGenerator[list[Any], None]:
        response = self._replicas.answer.remote(scope, body)
        is_over = False
        try:
            async for batch in response:
                yield batch
            is_over = True
        except LOST:
            is_over = True
            raise lost_replica() from None
        finally:
            if not is_over:
                response.cancel()


class _Passed(Response):
    """A response that an ASGI application sends."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
