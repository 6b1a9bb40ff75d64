"""Bodies made from the server's own OpenAPI description, right ones and wrong ones: none gives a 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

from tests.server.running import TOKEN, Running, limits, running, settings_of


@pytest.fixture(scope="module")
def described(models: dict[str, str]) -> Iterator[Running]:
    # Some bodies ask for 128 answers: their time is short, and 504 is the right answer then.
    with running(settings_of(**models, **limits(), server={"request_timeout_s": 0.2})) as state:
        yield state


WITH_VALUES = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("PATCH", "/admin/routes/{name}"),
    ("GET", "/admin/routes/{name}/decisions"),
)
"""Calls in which something can be of a wrong type."""
CALLS = (*WITH_VALUES, ("GET", "/v1/models/{name}"), ("DELETE", "/admin/routes/{name}/overlay"))
CASES = [(GenerationMode.POSITIVE, *call) for call in CALLS]
CASES += [(GenerationMode.NEGATIVE, *call) for call in WITH_VALUES]


@pytest.mark.parametrize(("mode", "method", "path"), CASES)
def test_no_call_gives_a_500(described: Running, mode: GenerationMode, method: str, path: str) -> None:
    description = schemathesis.openapi.from_dict(described.http().get("/openapi.json").json())
    seen: set[int] = set()

    @settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=description[path][method].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if path.startswith("/admin") and "name" in case.path_parameters:
            case.path_parameters["name"] = "default"  # a made-up one is not found, and nothing is tried
        answer = case.call(base_url=described.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
        seen.add(answer.status_code)
        assert answer.status_code != 500
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    check()
    assert seen


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_no_wrong_value_of_any_key_gives_a_500(described: Running, path: str) -> None:
    http = described.http()
    right = {"model": "tiny", "max_tokens": 2}
    right |= {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    body = http.get("/openapi.json").json()["components"]["schemas"]
    keys = body["ChatBody" if "chat" in path else "CompletionBody"]["properties"]
    values = [True, -1, 10**30, 1e308, "", "\x00", [], [[None]], {}, {"a": {}}]
    for key in [*keys, "other"]:
        for value in values:
            answer = http.post(path, json={**right, key: value})
            assert answer.status_code in (200, 400, 404, 429, 504), (key, value, answer.text)


def test_what_is_served_is_described(described: Running) -> None:
    found = described.http().get("/openapi.json").json()
    calls = {(method, path) for path, methods in found["paths"].items() for method in methods}
    assert calls == {
        ("get", "/v1/models"), ("get", "/v1/models/{name}"), ("post", "/v1/completions"),
        ("post", "/v1/chat/completions"), ("get", "/health"), ("get", "/metrics"), ("get", "/status"),
        ("get", "/admin/routes"), ("patch", "/admin/routes/{name}"), ("post", "/admin/reload"),
        ("delete", "/admin/routes/{name}/overlay"), ("get", "/admin/routes/{name}/decisions"),
    }  # fmt: skip
