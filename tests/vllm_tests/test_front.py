"""What stands before vLLM's server, against an application in its place that says what reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry, generate_latest

from paceline.config.file import load_serve_config
from paceline.config.server import ServeSettings
from paceline.errors import ConfigError
from paceline.vllm import ending
from paceline.vllm.bridge import Bridge, replace_json
from paceline.vllm.bridge_metrics import BridgeCollector
from paceline.vllm.ending import ended_with
from paceline.vllm.flags import launch_of
from paceline.vllm.front import Front
from paceline.vllm.launch import in_use, prepare, settings_of
from paceline.vllm.middleware import RouteMiddleware, admin_app, wrapped
from paceline.vllm.routes_file import read_routes
from paceline.vllm.served import VllmService, running
from tests.vllm_tests.test_engine_file import engine

TOKEN = "admin-token-of-tests"
ADMIN = {"Authorization": f"Bearer {TOKEN}"}
VALUES: dict[str, Any] = {
    "target": "org/tiny",
    "routes": {
        "chat": {"speculation": "auto", "max_draft_length": 4},
        "code": {"speculation": "on", "draft_length": 3},
        "batch": {"speculation": "off"},
    },
    "default_route": "chat",
    "server": {"admin_token": TOKEN},
}
SERVED = ("tiny", "adapter:v2")


def write(folder: Path, **changes: Any) -> ServeSettings:
    values = {**VALUES, **changes}
    values["server"] = {**VALUES["server"], **changes.get("server", {})}
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return load_serve_config(path, {"server": {}}, environ={})


def behind() -> FastAPI:
    """Return an application that answers with what it was sent."""
    app = FastAPI()

    async def echo(request: Request) -> Any:
        return {"body": await request.json(), "path": request.url.path}

    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
    ):
        app.add_api_route(path, echo, methods=["POST"])

    @app.post("/invocations")
    async def slowly(request: Request) -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "data: {}\n\n"
            await asyncio.sleep(60)

        return StreamingResponse(parts(), media_type="text/event-stream")

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": [{"id": "tiny", "max_model_len": 64}]}

    @app.get("/health")
    async def health() -> None:
        return None

    return app


@contextlib.asynccontextmanager
async def front(settings: ServeSettings, num_seqs: int = 8) -> AsyncIterator[httpx.AsyncClient]:
    assert settings.bridge_path is not None
    service, app, registry = VllmService(settings, settings.bridge_path), behind(), CollectorRegistry()
    async with running(service):
        inner = Front(app, admin_app(service), service, lambda: SERVED, num_seqs)
        transport = httpx.ASGITransport(wrapped(inner, service, registry))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            client.registry = registry  # type: ignore[attr-defined]
            yield client


def ask(
    settings: ServeSettings, question: Callable[[httpx.AsyncClient], Awaitable[Any]], num_seqs: int = 8
) -> Any:
    async def main() -> Any:
        async with front(settings, num_seqs) as client:
            return await question(client)

    return asyncio.run(main())


def posted(settings: ServeSettings, path: str = "/v1/completions", **options: Any) -> httpx.Response:
    async def question(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(path, **options)

    answer: httpx.Response = ask(settings, question)
    return answer


KEYS = {"api_keys": {"team": {"key": "key-of-team", "route": "batch"}, "other": {"key": "key-of-other"}}}
TEAM = {"Authorization": "Bearer key-of-team"}


@pytest.mark.parametrize(
    ("model", "headers", "route"),
    [
        ("tiny", {}, "batch"),
        ("tiny:code", {}, "code"),
        ("tiny:code", {"X-Paceline-Route": "chat"}, "chat"),
        ("tiny", {"X-Paceline-Route": "code"}, "code"),
        ("tiny", {"Authorization": "Bearer key-of-other"}, "chat"),
        ("adapter:v2", {}, "batch"),
        ("adapter:v2:code", {}, "code"),
        (None, {}, "batch"),
    ],
)
def test_the_route_is_that_of_the_header_then_the_model_then_the_key_then_the_default(
    tmp_path: Path, model: str | None, headers: dict[str, str], route: str
) -> None:
    body = {"prompt": "é", "vllm_xargs": {"mine": 1}, **({} if model is None else {"model": model})}
    answer = posted(write(tmp_path, server=KEYS), json=body, headers={**TEAM, **headers})
    assert answer.status_code == 200
    assert answer.headers["X-Paceline-Route"] == route
    sent = answer.json()["body"]
    assert sent["vllm_xargs"] == {"mine": 1, "paceline_route": route}
    assert sent["model"] == (model or "tiny").removesuffix(":code")
    assert sent["prompt"] == "é"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_each_endpoint_that_generates_has_routes(tmp_path: Path, path: str) -> None:
    answer = posted(write(tmp_path), path, json={"model": "tiny:batch"})
    assert answer.json()["body"]["vllm_xargs"]["paceline_route"] == "batch"


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        (
            {"json": {"model": "tiny", "prompt": "x"}, "headers": {"X-Paceline-Route": "none"}},
            404,
            "route_not_found",
        ),
        ({"json": {"model": "tiny:none", "prompt": "x"}}, 404, "model_not_found"),
        ({"json": {"model": "other", "prompt": "x"}}, 404, "model_not_found"),
        ({"json": {"model": "tiny", "vllm_xargs": {"paceline_route": "code"}}}, 400, "invalid_parameter"),
        ({"json": {"model": "tiny", "vllm_xargs": []}}, 400, "invalid_parameter"),
        ({"json": {"model": "tiny", "return_speculation": True}}, 400, "invalid_parameter"),
        ({"json": {"model": "tiny", "speculation": "off"}}, 400, "invalid_parameter"),
        ({"json": {"model": "tiny", "speculation": {"enabled": "maybe"}}}, 400, "invalid_parameter"),
        ({"json": {"model": "tiny", "speculation": {"length": 3}}}, 400, "invalid_parameter"),
        ({"json": {"model": "tiny", "speculation": {"max_draft_length": 5}}}, 400, "invalid_parameter"),
        ({"json": {"model": "tiny:batch", "speculation": {"enabled": True}}}, 400, "invalid_parameter"),
        ({"json": {"model": "tiny", "speculation": {"drafter": "model"}}}, 400, "invalid_parameter"),
    ],
)
def test_what_cannot_be_served_is_refused_in_openais_form(
    tmp_path: Path, options: dict[str, Any], status: int, code: str
) -> None:
    answer = posted(write(tmp_path), **options)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert "expected" in error["message"]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"enabled": False}, {"paceline_speculation_enabled": 0}),
        ({"enabled": True, "max_draft_length": 2},
         {"paceline_speculation_enabled": 1, "paceline_max_draft_length": 2}),
        ({"enabled": "auto", "drafter": "suffix"}, {"paceline_speculation_enabled": "auto"}),
        ({"enabled": None}, {}),
    ],
)  # fmt: skip
def test_what_a_request_asks_of_its_route_reaches_the_scheduler(
    tmp_path: Path, given: dict[str, Any], arguments: dict[str, Any]
) -> None:
    sent = posted(write(tmp_path), json={"model": "tiny:code", "speculation": given}).json()["body"]
    assert sent == {"model": "tiny", "vllm_xargs": {"paceline_route": "code", **arguments}}


def test_without_a_default_a_request_has_to_name_its_route(tmp_path: Path) -> None:
    settings = write(tmp_path, default_route=None)
    assert posted(settings, json={"model": "tiny"}).status_code == 404
    assert posted(settings, json={"model": "tiny:code"}).status_code == 200


def test_a_route_is_not_dropped_where_requests_have_none(tmp_path: Path) -> None:
    refused = posted(write(tmp_path), "/v1/embeddings", json={}, headers={"X-Paceline-Route": "code"})
    assert refused.status_code == 400
    assert "/v1/chat/completions" in refused.json()["error"]["message"]
    assert posted(write(tmp_path), "/v1/embeddings", json={}).status_code == 200


def test_a_body_that_is_none_reaches_vllm_which_says_so(tmp_path: Path) -> None:
    assert posted(write(tmp_path), json=[1]).json()["body"] == [1]


def test_keys_are_asked_for_where_there_are_any(tmp_path: Path) -> None:
    async def question(client: httpx.AsyncClient) -> list[int]:
        body = {"json": {"model": "tiny"}}
        wrong = {"Authorization": "Bearer not-a-key"}
        return [
            (await client.post("/v1/completions", **body)).status_code,
            (await client.post("/v1/completions", **body, headers=wrong)).status_code,
            (await client.post("/v1/completions", **body, headers=TEAM)).status_code,
            (await client.get("/v1/models")).status_code,
            (await client.post("/v1/embeddings", json={})).status_code,
            (await client.get("/health")).status_code,
            (await client.get("/status", headers=TEAM)).status_code,
            (await client.get("/status")).status_code,
            (await client.get("/admin/routes", headers=TEAM)).status_code,
        ]

    statuses = ask(write(tmp_path, server=KEYS), question)
    assert statuses == [401, 401, 200, 401, 401, 200, 200, 401, 401]


def test_models_are_listed_with_their_routes(tmp_path: Path) -> None:
    async def question(client: httpx.AsyncClient) -> Any:
        return (await client.get("/v1/models")).json()

    found = ask(write(tmp_path), question)["data"]
    assert [one["id"] for one in found] == ["tiny", "tiny:chat", "tiny:code", "tiny:batch"]
    assert found[-1]["max_model_len"] == 64


def test_limits_hold(tmp_path: Path) -> None:
    async def question(client: httpx.AsyncClient) -> Any:
        slow = [asyncio.create_task(client.post("/invocations", json={"model": "tiny"})) for _ in range(2)]
        await asyncio.sleep(0)
        busy = await client.post("/v1/completions", json={"model": "tiny"})
        large = await client.post("/v1/completions", json={"model": "tiny", "prompt": "x" * 2000})
        ended = [(await one).text for one in slow]
        after = await client.post("/v1/completions", json={"model": "tiny"})
        return busy, large, ended, after

    limits = {"max_queued": 1, "max_body_bytes": 1000, "request_timeout_s": 0.5}
    busy, large, ended, after = ask(write(tmp_path, server=limits), question, num_seqs=1)
    assert busy.status_code == 429
    assert busy.headers["Retry-After"] == "1"
    assert large.status_code == 413
    for text in ended:
        assert text.startswith("data: {}\n\n")
        assert '"code": "timeout"' in text
        assert text.endswith("data: [DONE]\n\n")
    assert after.status_code == 200


class Server:
    """What vLLM runs, as far as its end goes."""

    def __init__(self) -> None:
        self.should_exit = False
        self.config = SimpleNamespace(timeout_graceful_shutdown=None)


class EngineClient:
    """What stops vLLM's engine."""

    def __init__(self) -> None:
        self.stopped_within: float | None = None

    def shutdown(self, timeout: float) -> None:
        self.stopped_within = timeout


def test_answers_that_an_ending_engine_left_open_end_and_later_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(ending, "SENT_WITHIN_S", 0.0)
    limited = {"api_keys": {"team": {"key": "key-of-team", "max_concurrent": 1}}}
    settings, server, vllm = write(tmp_path, server=limited), Server(), EngineClient()
    assert settings.bridge_path is not None

    async def main() -> tuple[list[httpx.Response], httpx.Response]:
        service = VllmService(settings, settings.bridge_path)
        inner = Front(behind(), admin_app(service), service, lambda: SERVED, 8)
        async with (
            running(service),
            ended_with(server, vllm, inner),
            httpx.AsyncClient(transport=httpx.ASGITransport(inner), base_url="http://test") as client,
        ):
            asked = {"json": {"model": "tiny"}, "headers": TEAM}
            # The first never ends by itself, and the second waits for its turn behind it.
            open_ones = [asyncio.create_task(client.post("/invocations", **asked)) for _ in range(2)]
            await asyncio.sleep(0.05)
            vllm.shutdown(timeout=3.0)
            later = await client.post("/v1/completions", **asked)
            assert not any(one.done() for one in open_ones), "the engine may finish what it has"
            server.should_exit = True
            return [await one for one in open_ones], later

    (streaming, waiting), later = asyncio.run(main())
    assert vllm.stopped_within == 3.0
    assert server.config.timeout_graceful_shutdown == ending.GIVEN_UP_AFTER_S
    assert streaming.text.startswith("data: {}\n\n")
    assert '"code": "shutting_down"' in streaming.text
    assert streaming.text.endswith("data: [DONE]\n\n")
    for refused in (waiting, later):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")


def test_a_change_reaches_the_file_of_the_engine_cores_and_outlives_the_process(tmp_path: Path) -> None:
    settings = write(tmp_path)
    bridge = Bridge(tmp_path / "site.vllm")

    async def change(client: httpx.AsyncClient) -> Any:
        before = read_routes(bridge.routes_path)
        answer = await client.patch("/admin/routes/code", json={"speculation": "off"}, headers=ADMIN)
        return before, answer.json(), read_routes(bridge.routes_path)

    before, shown, after = ask(settings, change)
    assert (before.version, before.routes["code"].by) == (1, "file")
    assert (after.version, after.routes["code"].by) == (2, "admin")
    assert after.routes["code"].settings.speculation == "off"
    assert after.routes["chat"] == before.routes["chat"]
    assert (shown["in_force"]["speculation"], shown["file"]["speculation"]) == ("off", "on")
    assert shown["overlay"]["speculation"]["by"] == "admin"

    async def again(client: httpx.AsyncClient) -> Any:
        kept = read_routes(bridge.routes_path)
        await client.delete("/admin/routes/code/overlay", headers=ADMIN)
        return kept, read_routes(bridge.routes_path)

    kept, reset = ask(settings, again)
    assert kept == after, "nothing changed, so nothing was written"
    assert (reset.version, reset.routes["code"].settings.speculation) == (3, "on")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"draft_length": 9}, "at most 4, for which vLLM was started"),
        ({"drafters": ["model"]}, "drafter 'model'"),
        ({"specs": 1}, "unknown key 'specs'"),
        ({}, "without a key"),
    ],
)
def test_what_vllm_was_not_started_for_is_refused(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    async def question(client: httpx.AsyncClient) -> httpx.Response:
        return await client.patch("/admin/routes/code", json=values, headers=ADMIN)

    answer = ask(write(tmp_path), question)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert read_routes(Bridge(tmp_path / "site.vllm").routes_path).version == 1


def test_a_changed_file_is_followed_and_a_broken_one_refused(tmp_path: Path) -> None:
    settings = write(tmp_path)
    routes = {**VALUES["routes"], "new": {"speculation": "off"}}

    async def question(client: httpx.AsyncClient) -> Any:
        write(tmp_path, routes=routes)
        changes = (await client.post("/admin/reload", headers=ADMIN)).json()["changes"]
        named = await client.post("/v1/completions", json={"model": "tiny:new"})
        write(tmp_path, routes={"chat": {"draft_length": 50}})
        broken = await client.post("/admin/reload", headers=ADMIN)
        listed = (await client.get("/admin/routes", headers=ADMIN)).json()
        return changes, named, broken, listed

    changes, named, broken, listed = ask(settings, question)
    assert changes == ["route new is new"]
    assert named.headers["X-Paceline-Route"] == "new"
    assert broken.status_code == 400
    assert "at most 4" in listed["config_error"]
    assert [one["name"] for one in listed["routes"]] == ["chat", "code", "batch", "new"]


def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path / "site.vllm")

    async def question(client: httpx.AsyncClient) -> Any:
        bridge.routes_path.unlink()
        bridge.routes_path.mkdir()  # a folder in the way cannot be replaced by a file
        failed = await client.patch("/admin/routes/code", json={"weight": 2}, headers=ADMIN)
        listed = (await client.get("/admin/routes", headers=ADMIN)).json()["routes"]
        return failed, next(one for one in listed if one["name"] == "code")

    failed, code = ask(write(tmp_path), question)
    assert failed.status_code == 503
    assert "can be written" in failed.json()["error"]["message"]
    assert code["in_force"]["weight"] == 1.0


def test_what_engine_cores_counted_is_shown_and_published(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path / "site.vllm")
    first = engine()
    replace_json(bridge.engine_path(0), first.to_json())
    line = {"route": "chat", "kind": "setting", "by": "ann", "sentence": "s"}
    bridge.folder.joinpath("decisions-0.jsonl").write_text(json.dumps({"time": 5.0, **line}) + "\n{half")

    async def question(client: httpx.AsyncClient) -> Any:
        decisions = (await client.get("/admin/routes/chat/decisions", headers=ADMIN)).json()["decisions"]
        status = (await client.get("/status", headers=ADMIN)).json()
        await client.post("/v1/completions", json={"model": "none"})
        return decisions, status, generate_latest(client.registry).decode()  # type: ignore[attr-defined]

    decisions, status, counted = ask(write(tmp_path), question)
    assert decisions == [{"time": 5.0, **line, "engine": 0}]
    chat = status["routes"][0]
    assert chat["report"]["state"] == "off"
    assert chat["num_output_tokens"] == first.counts.routes["chat"].num_output_tokens > 0
    assert chat["pending_engines"] == [0], "its file says version 3, and the routes are at version 1"
    assert (status["engines"][0]["num_running"], status["engines"][0]["is_behind"]) == (2, True)
    assert 'paceline_http_responses_total{endpoint="other",status="404"} 1.0' in counted


def exposed(bridge: Bridge) -> list[str]:
    registry = CollectorRegistry()
    registry.register(BridgeCollector(bridge))
    return generate_latest(registry).decode().splitlines()


def test_series_have_the_names_of_our_server_and_a_rank_where_there_are_several(tmp_path: Path) -> None:
    bridge = Bridge(tmp_path)
    assert all(line.startswith("#") or "paceline_build_info" in line for line in exposed(bridge))
    replace_json(bridge.engine_path(0), engine().to_json())
    one = exposed(bridge)
    assert 'paceline_drafted_tokens_total{drafter="model",route="chat"} 240.0' in one
    assert 'paceline_accepted_tokens_total{drafter="model",route="chat"} 40.0' in one
    assert 'paceline_route_state{route="chat",state="off"} 1.0' in one
    replace_json(bridge.engine_path(1), replace(engine(), rank=1, num_running=7).to_json())
    several = exposed(bridge)
    for rank in (0, 1):
        assert (
            f'paceline_accepted_tokens_total{{drafter="model",engine="{rank}",route="chat"}} 40.0' in several
        )
    assert 'paceline_sequences_running{engine="1"} 7.0' in several
    helps = [line for line in several if line.startswith("# HELP")]
    assert len(set(helps)) == len(helps)
    bridge.engine_path(0).write_text("{")
    assert not any('engine="0"' in line for line in exposed(bridge))


def test_a_start_writes_routes_with_their_changes_and_forgets_engine_cores_of_before(tmp_path: Path) -> None:
    settings = write(tmp_path)
    bridge = Bridge(tmp_path / "site.vllm")

    async def change(client: httpx.AsyncClient) -> None:
        await client.patch("/admin/routes/code", json={"speculation": "off"}, headers=ADMIN)

    ask(settings, change)
    replace_json(bridge.engine_path(3), engine().to_json())
    bridge.routes_path.unlink()
    prepare(settings, launch_of(settings), {"server": {"port": 9001}})
    assert bridge.ranks() == []
    written = read_routes(bridge.routes_path)
    assert (written.default_route, written.routes["code"].settings.speculation) == ("chat", "off")
    assert settings_of(bridge.folder).server.port == 9001
    with in_use(bridge.folder), pytest.raises(ConfigError, match="another server"):
        prepare(settings, launch_of(settings), {})


def test_the_middleware_lives_as_long_as_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, registry = write(tmp_path, server=KEYS), CollectorRegistry()
    monkeypatch.setattr("paceline.vllm.middleware._registry", lambda: registry)
    prepare(settings, launch_of(settings), {})
    bridge = Bridge(tmp_path / "site.vllm")
    replace_json(bridge.engine_path(0), engine().to_json())
    app = behind()
    app.state.vllm_config = SimpleNamespace(
        additional_config={"paceline": {"bridge": str(bridge.folder)}},
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=SimpleNamespace(data_parallel_size=1),
    )
    models = SimpleNamespace(base_model_paths=[SimpleNamespace(name="tiny")], lora_requests={"adapter": None})
    app.state.openai_serving_models = models
    app.state.server, app.state.engine_client = Server(), EngineClient()
    app.add_middleware(RouteMiddleware)
    with TestClient(app) as client:
        answer = client.post("/v1/completions", json={"model": "adapter:code"}, headers=TEAM)
        assert answer.json()["body"]["vllm_xargs"] == {"paceline_route": "code"}
        assert client.get("/status", headers=TEAM).json()["engines"][0]["rank"] == 0
        assert b"paceline_drafted_tokens_total" in generate_latest(registry)
        with pytest.raises(ConfigError, match="another server"), in_use(bridge.folder):
            pass
    assert b"paceline_drafted_tokens_total" not in generate_latest(registry)
    with in_use(bridge.folder):
        pass


def test_a_server_that_was_not_started_by_the_command_does_not_start(tmp_path: Path) -> None:
    app = behind()
    app.state.vllm_config = SimpleNamespace(additional_config={"paceline": {"bridge": str(tmp_path)}})
    sent: list[Any] = []

    async def main() -> None:
        async def receive() -> Any:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message)

        await RouteMiddleware(app)({"type": "lifespan", "app": app}, receive, send)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("paceline.vllm.middleware._registry", CollectorRegistry)
        asyncio.run(main())
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "paceline vllm serve" in sent[0]["message"]
