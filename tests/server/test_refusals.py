"""What is not served is refused with the right status, in OpenAI's form, and says what would be right."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.server.running import Running

AUTHORIZED = {"Authorization": "Bearer key-of-team-b"}


@pytest.fixture(scope="module")
def http(server: Running) -> httpx.Client:
    return server.http(headers=AUTHORIZED)


def refusal(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"functions": [], "audio": {}}, "audio, functions"),
        ({"temprature": 1}, "temprature"),
        ({"temperature": 3}, "temperature = 3"),
        ({"temperature": "1"}, "temperature"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "one of them"),
        ({"top_logprobs": 2}, "logprobs: true"),
        ({"stream_options": {"include_usage": True}}, "stream: true"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "not padded"),
        ({"response_format": {"type": "json_schema"}}, "a schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}}},
            "strange",
        ),
        ({"logit_bias": {"a": 1}}, "token ids as keys"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "image_url"),
        ({"messages": [{"role": "user", "content": "the " * 1000}]}, "at most 400"),
        ({"seed": 2**64}, "seed"),
        ({"speculation": {"enabled": "maybe"}}, "speculation.enabled"),
        ({"stop": [""]}, "stop"),
    ],
)
def test_a_wrong_parameter_is_named(http: httpx.Client, body: dict[str, Any], words: str) -> None:
    base = {"model": "tiny", "messages": [{"role": "user", "content": "the"}]}
    error = refusal(http.post("/v1/chat/completions", json={**base, **body}), 400)
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "value of n"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": []}, "at least one prompt"),
        ({"prompt": ""}, "at least one token"),
        ({"prompt": [10**6]}, "prompt token id"),
        ({"prompt": ["a"] * 129}, "at most 128"),
        ({"n": 200}, "n = 200"),
    ],
)
def test_plain_completions_refuse_too(http: httpx.Client, body: dict[str, Any], words: str) -> None:
    error = refusal(http.post("/v1/completions", json={"model": "tiny", "prompt": "a", **body}), 400)
    assert words in error["message"]


def test_harmless_labels_and_nulls_change_nothing(http: httpx.Client) -> None:
    plain = {"model": "tiny", "prompt": "the", "max_tokens": 5, "seed": 1}
    labels = {"user": "u", "metadata": {"a": "b"}, "store": False, "stop": None, "n": None, "suffix": None}
    first, second = (
        http.post("/v1/completions", json=body).json()["choices"][0]["text"]
        for body in (plain, {**plain, **labels})
    )
    assert first == second


def test_what_is_no_json_or_too_large_is_refused(http: httpx.Client) -> None:
    assert "not JSON" in refusal(http.post("/v1/completions", content="{"), 400)["message"]
    typed = {"Content-Type": "application/json"}
    for content in ("{", "[" * 50_000, b"\xff"):
        refusal(http.post("/v1/completions", content=content, headers=typed), 400)
    refusal(http.post("/v1/completions", json=[1, 2]), 400)
    large = {"model": "tiny", "prompt": "a" * 200_000}
    assert "100000 bytes" in refusal(http.post("/v1/completions", json=large), 413)["message"]
    pieces = (b"x" * 10_000 for _ in range(30))
    assert "100000 bytes" in refusal(http.post("/v1/completions", content=pieces), 413)["message"]


def test_another_model_and_another_route_are_not_found(http: httpx.Client) -> None:
    for model in ("gpt", "tiny:none", "tiny:"):
        error = refusal(http.post("/v1/completions", json={"model": model, "prompt": "a"}), 404)
        assert error["code"] == "model_not_found"
        assert "tiny:chat" in error["message"]
    body = {"model": "tiny", "prompt": "a"}
    error = refusal(http.post("/v1/completions", json=body, headers={"X-Paceline-Route": "none"}), 404)
    assert error["code"] == "route_not_found"


def test_keys_are_asked_for(server: Running) -> None:
    http = server.http()
    for key in (None, "Bearer wrong", "Basic key-of-team-a", "Bearer"):
        answer = http.get("/v1/models", headers={} if key is None else {"Authorization": key})
        assert answer.headers["www-authenticate"] == "Bearer"
        assert refusal(answer, 401)["code"] == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        server.client("wrong").models.list()


@pytest.mark.parametrize(
    ("key", "model", "header", "route"),
    [
        ("key-of-team-b", "tiny", None, "chat"),
        ("key-of-team-a", "tiny", None, "code"),
        ("key-of-team-a", "tiny:chat", None, "chat"),
        ("key-of-team-a", "tiny:chat", "batch", "batch"),
    ],
)
def test_header_then_suffix_then_key_then_default(
    server: Running, key: str, model: str, header: str | None, route: str
) -> None:
    headers = {"Authorization": f"Bearer {key}"} | ({"X-Paceline-Route": header} if header else {})
    http = server.http(headers=headers)
    answer = http.post("/v1/completions", json={"model": model, "prompt": "a", "max_tokens": 1})
    assert answer.headers["x-paceline-route"] == route
