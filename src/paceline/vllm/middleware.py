"""Stands before vLLM's OpenAI server: tells callers and routes, and answers the administration itself.

Given to vLLM by `--middleware paceline.vllm.middleware.RouteMiddleware`, so that the server remains vLLM's
own. It begins and ends with the server's lifespan.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from typing import Any

from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.administration import admin_api
from paceline.administration.body_limit import BodyLimit
from paceline.administration.count_responses import CountResponses
from paceline.administration.error_handlers import add_error_handlers
from paceline.errors import ConfigError, PacelineError
from paceline.vllm.bridge import BridgeOptions
from paceline.vllm.bridge_metrics import BridgeCollector
from paceline.vllm.ending import ended_with
from paceline.vllm.front import Front
from paceline.vllm.launch import in_use, settings_of
from paceline.vllm.served import VllmService, running

log = logging.getLogger(__name__)


class RouteMiddleware:
    """ASGI middleware.

    Args:
        app: vLLM's application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._front: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, with its route; or answer it."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif self._front is None:  # a server that was told to do without lifespans
            raise RuntimeError("a request before vLLM's server has started")
        else:
            await self._front(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = await receive()
        has_begun = False

        async def replayed() -> Message:
            nonlocal has_begun
            if has_begun:
                return await receive()
            has_begun = True
            return begin

        async with contextlib.AsyncExitStack() as stack:
            try:
                self._front = await stack.enter_async_context(serving(self._app, scope["app"].state))
            except Exception as error:  # whatever is not said here, the server takes for a lack of lifespans
                log.error("routes cannot be served: %s", error, exc_info=not isinstance(error, PacelineError))
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await self._app(scope, replayed, send)


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, state: Any) -> AsyncIterator[ASGIApp]:
    """Give what stands before vLLM's application, while the block runs.

    Args:
        app: the application.
        state: as vLLM fills it: `vllm_config`, `openai_serving_models`, `server`,
            `engine_client`.

    Raises:
        ConfigError: vLLM was not started by `paceline vllm serve`, or its configuration is wrong by now.
    """
    bridge = BridgeOptions.of(state.vllm_config.additional_config).folder
    registry = _registry()
    with in_use(bridge):
        service = VllmService(settings_of(bridge), bridge)
        collector = BridgeCollector(service.bridge)
        async with running(service):
            registry.register(collector)
            try:
                config = state.vllm_config
                num_seqs = config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size
                front = Front(app, admin_app(service), service, lambda: served_names(state), num_seqs)
                async with ended_with(state.server, state.engine_client, front):
                    yield wrapped(front, service, registry)
            finally:
                registry.unregister(collector)


def wrapped(front: ASGIApp, service: VllmService, registry: CollectorRegistry) -> ASGIApp:
    """Return it with its responses counted and its bodies bounded, if the configuration says how."""
    server = service.settings.server
    # Pictures are larger than what is fit for text, so there is no limit unless one was set.
    limited = (
        BodyLimit(front, server.max_body_bytes) if "max_body_bytes" in server.model_fields_set else front
    )
    return CountResponses(limited, registry)


def admin_app(service: VllmService) -> FastAPI:
    """Return the application that answers the administration."""
    app = FastAPI(title="Paceline", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.administered = service
    app.include_router(admin_api.router)
    app.include_router(admin_api.status_router)
    add_error_handlers(app)
    return app


def served_names(state: Any) -> Collection[str]:
    """Return what vLLM's models are called, adapters included."""
    models = state.openai_serving_models
    return [*(path.name for path in models.base_model_paths), *models.lora_requests]


def _registry() -> CollectorRegistry:
    """Return the registry that vLLM publishes.

    Raises:
        ConfigError: it publishes files of several processes, which cannot have what is read when asked.
    """
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    found: CollectorRegistry = get_prometheus_registry()
    if found is not REGISTRY:
        raise ConfigError(
            given="PROMETHEUS_MULTIPROC_DIR, which is for several serving processes",
            expected="metrics of the one that there is",
            remedy="Unset it",
        )
    return found
