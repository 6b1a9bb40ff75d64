"""Lets an application answer every error in OpenAI's form."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from paceline.administration.http_errors import INVALID, error_response, invalid_body
from paceline.errors import PacelineError


def add_error_handlers(app: FastAPI) -> None:
    """Add handlers of our errors, of bodies that do not fit, of unknown paths, and of everything else."""
    app.add_exception_handler(PacelineError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_error)


async def _on_error(request: Request, error: Exception) -> JSONResponse:
    return error_response(error)


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return error_response(invalid_body(error.errors()))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    body = {"message": str(error.detail), "type": INVALID, "param": None, "code": None}
    return JSONResponse({"error": body}, error.status_code, error.headers)
