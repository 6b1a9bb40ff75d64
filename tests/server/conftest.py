"""One server for all tests that only ask it questions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.running import Running, limits, running, settings_of, write_models

KEYS = {"team-a": {"key": "key-of-team-a", "route": "code"}, "team-b": {"key": "key-of-team-b"}}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_models(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="package")
def server(models: dict[str, str]) -> Iterator[Running]:
    routes = {
        "chat": {"speculation": "auto"},
        "code": {"speculation": True, "drafters": ["model"], "draft_length": 3},
        "batch": {"speculation": False},
    }
    settings = settings_of(
        **models,
        **limits(),
        routes=routes,
        default_route="chat",
        server={"api_keys": KEYS, "max_body_bytes": 100_000, "max_prompt_tokens": 400},
    )
    with running(settings) as state:
        yield state
