"""Every error of the package has its status, and what is not ours says nothing of the inside."""

from __future__ import annotations

import inspect

import pytest

from paceline import errors
from paceline.administration.http_errors import TABLE, error_body, error_response, http_error
from paceline.errors import BusyError, PacelineError, ServingError


def classes() -> list[type[PacelineError]]:
    members = [member for _, member in inspect.getmembers(errors, inspect.isclass)]
    return [member for member in members if issubclass(member, PacelineError)]


def test_the_table_is_complete() -> None:
    # Those of models and downloads may share a line: requests do not meet them.
    inner = (errors.ModelError, errors.DownloadError)
    missing = [kind for kind in classes() if kind not in TABLE and not issubclass(kind, inner)]
    assert missing == []


@pytest.mark.parametrize("kind", classes())
def test_who_is_at_fault_shows_in_the_status(kind: type[PacelineError]) -> None:
    status = http_error(kind("a", "b", "C")).status
    is_callers = issubclass(kind, errors.RequestError | errors.AccessError | errors.ConfigError)
    is_callers |= kind in (errors.ChatTemplateError, BusyError)
    assert (400 <= status < 500) == (is_callers and kind is not errors.GenerationError)


def test_a_full_server_names_whole_seconds() -> None:
    response = error_response(BusyError("a", "b", "C", retry_after_s=2.1))
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    assert error_response(ServingError("a", "b", "C")).headers["retry-after"] == "1"


def test_an_unknown_error_is_not_shown() -> None:
    assert "secret" not in str(error_body(ValueError("secret")))
