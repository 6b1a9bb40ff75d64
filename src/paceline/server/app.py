"""The ASGI application, put together."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse

from paceline import __version__
from paceline.administration import admin_api
from paceline.administration.body_limit import BodyLimit
from paceline.administration.count_responses import CountResponses
from paceline.administration.error_handlers import add_error_handlers
from paceline.runtime import RuntimeState
from paceline.server import http_metrics, openai_api, page_files
from paceline.server.service import Service
from paceline.server.status import EngineAdministration

log = logging.getLogger(__name__)


def create_app(service: Service, first: Sequence[APIRouter] = ()) -> FastAPI:
    """Return the application for a service whose runtime is started by whoever serves it.

    Args:
        service: what its endpoints share.
        first: routers whose endpoints come before those of the same path here.
    """
    app = FastAPI(title="Paceline", version=__version__, docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.administered = EngineAdministration(service)
    app.add_middleware(BodyLimit, max_bytes=service.settings.server.max_body_bytes)
    app.add_middleware(CountResponses, registry=service.registry)
    for router in first:
        app.include_router(router)
    app.include_router(openai_api.router)
    app.include_router(http_metrics.router)
    app.include_router(admin_api.router)
    app.include_router(admin_api.status_router)
    app.include_router(page_files.router)
    add_error_handlers(app)
    app.add_api_route("/health", _health, methods=["GET"], tags=["operation"])
    return app


async def _health(request: Request) -> JSONResponse:
    """Say whether requests are taken: 200, or 503 where it starts, drains or has stopped."""
    state = request.app.state.service.llm.runtime.state
    return JSONResponse({"status": state.value}, 200 if state is RuntimeState.RUNNING else 503)
