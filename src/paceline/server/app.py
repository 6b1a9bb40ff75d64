"""The ASGI application, put together."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from paceline import __version__
from paceline.errors import PacelineError
from paceline.runtime import RuntimeState
from paceline.server import admin_api, http_metrics, openai_api, page_files
from paceline.server.body_limit import BodyLimit
from paceline.server.errors import INVALID, error_response, invalid_body
from paceline.server.http_metrics import CountResponses
from paceline.server.service import Service

log = logging.getLogger(__name__)


def create_app(service: Service, first: Sequence[APIRouter] = ()) -> FastAPI:
    """Return the application for a service whose runtime is started by whoever serves it.

    Args:
        service: what its endpoints share.
        first: routers whose endpoints come before those of the same path here.
    """
    app = FastAPI(title="Paceline", version=__version__, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(BodyLimit, max_bytes=service.settings.server.max_body_bytes)
    app.add_middleware(CountResponses, registry=service.registry)
    for router in first:
        app.include_router(router)
    app.include_router(openai_api.router)
    app.include_router(http_metrics.router)
    app.include_router(admin_api.router)
    app.include_router(admin_api.status_router)
    app.include_router(page_files.router)
    app.add_exception_handler(PacelineError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_error)
    app.add_api_route("/health", _health, methods=["GET"], tags=["operation"])
    return app


async def _health(request: Request) -> JSONResponse:
    """Say whether requests are taken: 200, or 503 where it starts, drains or has stopped."""
    state = request.app.state.service.llm.runtime.state
    return JSONResponse({"status": state.value}, 200 if state is RuntimeState.RUNNING else 503)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    return error_response(error)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(invalid_body(error.errors()))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    body = {"message": str(error.detail), "type": INVALID, "param": None, "code": None}
    return JSONResponse({"error": body}, error.status_code, error.headers)
