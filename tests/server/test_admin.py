"""Routes that are changed while requests run, changes that last, and a file that is followed."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.server.running import TOKEN, Running, limits, running, settings_of

ADMIN = {"Authorization": f"Bearer {TOKEN}"}
ROUTES: dict[str, Any] = {
    "chat": {"speculation": "auto"},
    "code": {"speculation": True, "drafters": ["model"], "draft_length": 3},
}


def write(path: Path, models: dict[str, str], routes: dict[str, Any] = ROUTES, **more: Any) -> Path:
    values = {**models, **limits(), "routes": routes, "default_route": "chat", **more}
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def path(tmp_path: Path, models: dict[str, str]) -> Path:
    return write(tmp_path / "paceline.yaml", models)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, models: dict[str, str]) -> Iterator[Running]:
    path = write(tmp_path_factory.mktemp("admin") / "paceline.yaml", models)
    with running(settings_of(path)) as state:
        yield state


@pytest.fixture
def admin(shared: Running) -> Iterator[httpx.Client]:
    client = shared.http(headers=ADMIN)
    yield client
    for name in ROUTES:
        client.delete(f"/admin/routes/{name}/overlay")


def route(admin: httpx.Client, name: str) -> dict[str, Any]:
    found = admin.get("/admin/routes").json()["routes"]
    return next(one for one in found if one["name"] == name)


def until(condition: Any) -> None:
    while not condition():
        time.sleep(0.05)


def test_a_change_is_in_force_shown_as_such_and_taken_back(admin: httpx.Client) -> None:
    changed = admin.patch("/admin/routes/code", json={"speculation": "off"}).json()
    assert changed == route(admin, "code")
    assert changed["in_force"]["speculation"] == "off"
    assert changed["file"]["speculation"] == "on"
    assert changed["overlay"]["speculation"]["by"] == "admin"
    assert changed["report"]["state"] == "off"
    assert admin.delete("/admin/routes/code/overlay").json()["overlay"] == {}
    assert route(admin, "code")["report"]["state"] == "speculating"
    words = [
        (one["by"], one["after"]) for one in admin.get("/admin/routes/code/decisions").json()["decisions"]
    ]
    assert words[-2:] == [("admin", "off"), ("admin", "speculating")]


def test_the_log_says_who_changed_what(tmp_path: Path, models: dict[str, str]) -> None:
    tokens = {"alice": "token-of-alice", "ci": "token-of-ci-jobs"}
    server = {"admin_tokens": tokens}
    with running(settings_of(write(tmp_path / "named.yaml", models), server=server)) as state:
        for name, token in tokens.items():
            http = state.http(headers={"Authorization": f"Bearer {token}"})
            changed = http.patch("/admin/routes/code", json={"draft_length": 2 + len(name)}).json()
            assert changed["overlay"]["draft_length"]["by"] == name
        http.delete("/admin/routes/code/overlay")
        state.http(headers=ADMIN).patch("/admin/routes/code", json={"speculation": "off"})
        found = http.get("/admin/routes/code/decisions").json()["decisions"]
        assert [one["by"] for one in found][-4:] == ["alice", "ci", "ci", "admin"]
        wrong = state.http(headers={"Authorization": "Bearer token-of-nobody"}).get("/admin/routes")
        assert wrong.status_code == 401
    log = (tmp_path / "named.decisions.jsonl").read_text()
    assert [json.loads(line)["by"] for line in log.splitlines()][-4:] == ["alice", "ci", "ci", "admin"]
    assert not any(token in log for token in tokens.values())


def test_a_switch_reaches_a_stream_that_runs_and_leaves_its_text_alone(
    shared: Running, admin: httpx.Client
) -> None:
    body: dict[str, Any] = {
        "model": "tiny:code", "prompt": "the def", "max_tokens": 400, "seed": 4, "ignore_eos": True,
        "stream": True, "return_speculation": True,
    }  # fmt: skip

    def ask(changes_after: int | None) -> tuple[str, list[int]]:
        text, accepted = "", []
        with shared.http().stream("POST", "/v1/completions", json=body) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                (choice,) = json.loads(line[6:])["choices"]
                text += choice["text"]
                if choice["finish_reason"] is None:
                    accepted.append(choice["speculation"]["num_accepted"])
                else:
                    final = choice["speculation"]
                if len(accepted) == changes_after:
                    admin.patch("/admin/routes/code", json={"speculation": "off"})
        return text, [final["num_drafted"], final["num_steps"]]

    text, (drafted, steps) = ask(None)
    assert drafted >= 3 * (steps - 3)
    switched, (fewer, _) = ask(3)
    assert switched == text
    assert 0 < fewer < drafted / 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"speculation": "maybe"}, "speculation = 'maybe'"),
        ({"specs": "on"}, "unknown key 'specs'"),
        ({"max_draft_length": 5}, "one of them"),
        ({"drafters": ["other"]}, "'other'"),
        ({}, "without a key"),
    ],
)
def test_a_wrong_change_changes_nothing(admin: httpx.Client, values: dict[str, Any], words: str) -> None:
    before = route(admin, "code")
    answer = admin.patch("/admin/routes/code", json=values)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert route(admin, "code")["in_force"] == before["in_force"]


def test_one_length_takes_the_place_of_the_other(admin: httpx.Client) -> None:
    changed = admin.patch("/admin/routes/code", json={"draft_length": None, "max_draft_length": 5})
    assert changed.json()["in_force"]["max_draft_length"] == 5
    assert changed.json()["in_force"]["draft_length"] is None


def test_administration_asks_for_its_token(shared: Running, models: dict[str, str]) -> None:
    http = shared.http()
    for header, status in (({}, 401), ({"Authorization": "Bearer other"}, 401), (ADMIN, 200)):
        assert http.get("/admin/routes", headers=header).status_code == status
    assert http.patch("/admin/routes/code", json={"speculation": "off"}).status_code == 401
    assert http.get("/admin/routes/none/decisions", headers=ADMIN).status_code == 404
    assert http.patch("/admin/routes/none", json={"weight": 2}, headers=ADMIN).status_code == 404
    # A request that a proxy of this machine passes on for somebody elsewhere.
    elsewhere = {**ADMIN, "X-Forwarded-For": "192.0.2.7"}
    assert http.get("/admin/routes", headers=elsewhere).status_code == 403
    with running(settings_of(**models, **limits(), server={"admin_token": None})) as state:
        assert state.http().get("/admin/routes", headers=ADMIN).status_code == 403


def test_changes_and_decisions_outlast_the_server(path: Path) -> None:
    with running(settings_of(path)) as state:
        admin = state.http(headers=ADMIN)
        admin.patch("/admin/routes/chat", json={"speculation": "off", "weight": 2})
        decided = admin.get("/admin/routes/chat/decisions").json()["decisions"]
    assert (path.parent / "paceline.state.sqlite").stat().st_mode & 0o777 == 0o600
    with running(settings_of(path)) as state:
        admin = state.http(headers=ADMIN)
        found = route(admin, "chat")
        assert (found["in_force"]["speculation"], found["in_force"]["weight"]) == ("off", 2.0)
        assert found["report"]["state"] == "off"
        again = admin.get("/admin/routes/chat/decisions").json()["decisions"]
        assert [one["sentence"] for one in again][: len(decided)] == [one["sentence"] for one in decided]
        assert [one["at"] for one in again][: len(decided)] == [one["at"] for one in decided]
        admin.delete("/admin/routes/chat/overlay")
    with running(settings_of(path)) as state:
        assert route(state.http(headers=ADMIN), "chat")["in_force"]["speculation"] == "auto"


def test_the_file_is_followed_but_for_what_was_changed_at_run_time(
    path: Path, models: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with running(settings_of(path)) as state:
        admin = state.http(headers=ADMIN)
        admin.patch("/admin/routes/chat", json={"weight": 3})
        write(path, models, {"chat": {"speculation": False, "weight": 7}, "new": {"speculation": True}})
        until(lambda: [one["name"] for one in admin.get("/admin/routes").json()["routes"]] == ["chat", "new"])
        chat = route(admin, "chat")
        assert (chat["in_force"]["speculation"], chat["in_force"]["weight"]) == ("off", 3.0)
        assert "weight is 7.0, and stays 3.0, as admin set it" in caplog.text
        body = {"model": "tiny:new", "prompt": "a", "max_tokens": 2}
        assert admin.post("/v1/completions", json=body).headers["x-paceline-route"] == "new"
        assert admin.post("/v1/completions", json={**body, "model": "tiny:code"}).status_code == 404

        path.write_text("target: [")
        until(lambda: admin.get("/admin/routes").json()["config_error"])
        assert route(admin, "chat")["in_force"] == chat["in_force"]
        assert admin.post("/admin/reload").status_code == 400
        write(path, models, ROUTES, max_num_seqs=2)
        answer = admin.post("/admin/reload").json()
        assert "takes effect at the next start: max_num_seqs" in answer["changes"]
        assert admin.get("/admin/routes").json()["config_error"] is None
        assert route(admin, "chat")["in_force"]["weight"] == 3.0


def test_the_file_is_followed_while_a_request_of_a_route_that_goes_still_runs(
    path: Path, models: dict[str, str]
) -> None:
    body = {"model": "tiny:code", "prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
    with running(settings_of(path)) as state:
        admin = state.http(headers=ADMIN)
        with state.http().stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            write(path, models, {"chat": {}})
            assert "route code is gone" in admin.post("/admin/reload").json()["changes"]
            rest = [line for line in lines if line]
        assert '"finish_reason":"length"' in rest[-2]


def test_a_store_that_is_none_is_refused_at_the_start(path: Path) -> None:
    store = path.parent / "paceline.state.sqlite"
    store.write_text("not a database, and long enough to be seen as none" * 50)
    with pytest.raises(Exception, match="Move that file away"), running(settings_of(path)):
        pass


def test_the_store_keeps_all_keys_of_a_change_or_none(
    path: Path, shared: Running, admin: httpx.Client
) -> None:
    admin.patch("/admin/routes/chat", json={"weight": 2, "probe_budget": 0.02})
    assert shared.settings.state_path is not None
    with sqlite3.connect(shared.settings.state_path) as db:
        assert dict(db.execute("SELECT key, value FROM overlay")) == {"weight": "2.0", "probe_budget": "0.02"}
    db.close()


def test_status_is_for_whoever_may_ask(server: Running, shared: Running) -> None:
    assert server.http().get("/status").status_code == 401
    for key in (TOKEN, "key-of-team-a"):
        headers = {"Authorization": f"Bearer {key}"}
        found = server.http(headers=headers).get("/status").json()
        assert [one["name"] for one in found["routes"]] == ["chat", "code", "batch"]
    assert shared.http().get("/status").json()["has_admin"] is True
