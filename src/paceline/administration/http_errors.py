"""Errors in OpenAI's form: one table from our classes to a status, a type and a code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastapi.responses import JSONResponse

from paceline import errors
from paceline.errors import BusyError, InvalidParameterError, PacelineError


class HttpError(NamedTuple):
    """How clients see a class of errors."""

    status: int
    type: str
    code: str | None = None


INVALID, SERVER = "invalid_request_error", "server_error"
_ACCESS, _FULL = "authentication_error", "rate_limit_error"

TABLE: Mapping[type[PacelineError], HttpError] = {
    errors.RequestError: HttpError(400, INVALID),
    errors.InvalidParameterError: HttpError(400, INVALID, "invalid_parameter"),
    errors.EmptyPromptError: HttpError(400, INVALID, "empty_prompt"),
    errors.PromptTooLongError: HttpError(400, INVALID, "context_length_exceeded"),
    errors.InputFileError: HttpError(400, INVALID),
    errors.UnknownModelError: HttpError(404, INVALID, "model_not_found"),
    errors.UnknownRouteError: HttpError(404, INVALID, "route_not_found"),
    errors.BodyTooLargeError: HttpError(413, INVALID, "body_too_large"),
    errors.GenerationError: HttpError(500, SERVER, "generation_failed"),
    errors.ConfigError: HttpError(400, INVALID, "invalid_setting"),
    errors.ChatTemplateError: HttpError(400, INVALID, "messages_not_supported"),
    errors.AccessError: HttpError(403, _ACCESS),
    errors.AuthenticationError: HttpError(401, _ACCESS, "invalid_api_key"),
    errors.ForbiddenError: HttpError(403, "permission_error", "forbidden"),
    errors.ServingError: HttpError(503, SERVER),
    errors.BusyError: HttpError(429, _FULL, "busy"),
    errors.ShutDownError: HttpError(503, SERVER, "shutting_down"),
    errors.StepError: HttpError(500, SERVER, "step_failed"),
    errors.StalledError: HttpError(504, SERVER, "stalled"),
    errors.ReplicaLostError: HttpError(503, SERVER, "replica_lost"),
    errors.DeadlineError: HttpError(504, SERVER, "timeout"),
    errors.CapacityError: HttpError(503, SERVER, "out_of_capacity"),
    errors.ModelError: HttpError(500, SERVER),
    errors.DownloadError: HttpError(500, SERVER),
    errors.PacelineError: HttpError(500, SERVER),
}
"""A class that is not listed is treated as the nearest one above it that is."""

RETRY_AFTER_S = 1
"""Where nobody knows better."""


def http_error(error: BaseException) -> HttpError:
    """Return how clients see an error."""
    return next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), HttpError(500, SERVER))


def error_body(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON. What is not ours says nothing of the inside."""
    seen = http_error(error)
    message = str(error) if isinstance(error, PacelineError) else "Internal error; the server's log has it."
    return {"error": {"message": message, "type": seen.type, "param": None, "code": seen.code}}


def error_response(error: BaseException) -> JSONResponse:
    """Return an error as a whole response, with `Retry-After` where waiting helps."""
    status = http_error(error).status
    headers = {}
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(max(RETRY_AFTER_S, math.ceil(error.retry_after_s or 0)))
    elif status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    elif status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status, headers)


def invalid_body(faults: Sequence[Any]) -> InvalidParameterError:
    """Return what is wrong with a body, from the list that FastAPI makes of it."""
    unknown = [_name(fault) for fault in faults if fault["type"] == "extra_forbidden"]
    if unknown:
        return InvalidParameterError(
            given="unknown or unsupported parameters: " + ", ".join(sorted(set(unknown))[:20]),
            expected="parameters that this server knows; docs/server.md lists them",
            remedy="Leave them out",
        )
    first = faults[0]
    name = _name(first)
    if first["type"] == "missing":
        given = f"no {name}"
    elif first["type"] == "json_invalid" or isinstance(first.get("input"), bytes):
        given = "a body that is not JSON, or not said to be by Content-Type: application/json"
    else:
        given = f"{name} = {first.get('input')!r:.80}"
    return InvalidParameterError(
        given=given,
        expected=str(first["msg"]).removeprefix("Value error, ").removeprefix("Input should be "),
        remedy="Correct it" if name else "Send a JSON object",
    )


def _name(fault: Mapping[str, Any]) -> str:
    parts = [str(part) for part in fault["loc"] if part not in ("body", "query", "path", "header")]
    return ".".join(parts) or "body"
