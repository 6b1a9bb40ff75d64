"""`paceline routes` against a real server, and `paceline serve` as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from paceline.cli.main import cli
from paceline.cli.routes import Administration
from tests.server.running import TOKEN, Running, limits, running, settings_of, write_models


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("routes")
    routes = {"chat": {"speculation": "auto"}, "code": {"speculation": True, "draft_length": 3}}
    settings = settings_of(**write_models(folder), **limits(), routes=routes, default_route="chat")
    with running(settings) as state:
        yield state


def run(server: Running, *arguments: str, token: str = TOKEN) -> Result:
    environ = {"PACELINE_URL": server.url, "PACELINE_ADMIN_TOKEN": token}
    return CliRunner().invoke(cli, ["routes", *arguments], env=environ)


def test_routes_are_listed_set_explained_and_reset(server: Running) -> None:
    listed = run(server, "list")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["ROUTE", "chat", "code"]
    changed = run(server, "set", "code", "speculation=off", "weight=2")
    assert "off: a person wants it so" in changed.stdout
    assert "speculation was set by" in changed.stdout
    shown = json.loads(run(server, "explain", "code", "--json").stdout)
    assert shown["in_force"]["weight"] == 2.0
    assert shown["decisions"][-1]["by"] == "admin"
    assert "speculating -> off" in run(server, "explain", "code").stdout
    assert json.loads(run(server, "reset", "code", "--json").stdout)["overlay"] == {}


@pytest.mark.parametrize(("label", "reports"), [("replica", "replicas"), ("engine", "reports")])
def test_of_several_engines_it_is_said_which_decided(
    monkeypatch: pytest.MonkeyPatch, label: str, reports: str
) -> None:
    decision = {"by": "policy", "before": "paused", "after": "speculating", "sentence": "so"}
    entries: dict[str, Any] = {"name": "chat", "overlay": {}, "in_force": {}, "report": None}
    monkeypatch.setenv("PACELINE_ADMIN_TOKEN", "a-token-of-tests")

    def explained(*numbers: str) -> str:
        def answers(self: Administration, method: str, path: str, body: Any = None) -> Any:
            if path.endswith("routes"):
                return {"routes": [{reports: dict.fromkeys(numbers), **entries}]}
            return {"decisions": [{**decision, "time": 0.0, label: 1}]}

        monkeypatch.setattr(Administration, "ask", answers)
        result = CliRunner().invoke(cli, ["routes", "explain", "chat"])
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()[-1].split("  ", 1)[1]

    assert explained("0", "1") == f"{label} 1, policy: paused -> speculating: so"
    assert explained("0") == "policy: paused -> speculating: so"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["set", "none", "weight=1"], "route 'none'"),
        (["set", "code", "weight"], "KEY=VALUE"),
        (["set", "code", "weight=-1"], "weight = -1"),
        (["set", "code", "weight=["], "KEY=VALUE"),
    ],
)
def test_mistakes_are_named(server: Running, arguments: list[str], words: str) -> None:
    result = run(server, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_wrong_token_and_no_server_are_told_apart(server: Running) -> None:
    assert "another token" in run(server, "list", token="a-wrong-token").stderr
    assert "no admin token" in run(server, "list", token="").stderr
    nobody = run(server, "list", "--url", "http://127.0.0.1:9")
    assert nobody.exit_code == 1
    assert "paceline serve" in nobody.stderr


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], str]]]:
    """Return a function that starts a server as a process, always with the same configuration."""
    config = tmp_path / "paceline.yaml"
    values = {**write_models(tmp_path), **limits(), "server": {"port": 0, "admin_token": TOKEN}}
    config.write_text(yaml.safe_dump(values))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "from paceline.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", "--config", str(config)]
    processes: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("serving tiny at "):
                return process, line.split()[3]
        raise AssertionError("it ended instead of serving")

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def ask(url: str, *arguments: str) -> Any:
    environ = {"PACELINE_URL": url, "PACELINE_ADMIN_TOKEN": TOKEN}
    result = CliRunner().invoke(cli, ["routes", *arguments, "--json"], env=environ)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_changes_and_decisions_are_kept_when_the_server_is_killed(
    start: Callable[[], tuple[subprocess.Popen[str], str]],
) -> None:
    process, url = start()
    ask(url, "set", "default", "speculation=off")
    decided = ask(url, "explain", "default")["decisions"]
    process.kill()
    process.wait()
    _, url = start()
    found = ask(url, "explain", "default")
    assert found["in_force"]["speculation"] == "off"
    assert found["decisions"][0]["sentence"] == decided[0]["sentence"]
    assert found["decisions"][0]["at"] == decided[0]["at"]


def test_a_server_that_is_told_to_stop_does_so_and_says_how_it_went(
    start: Callable[[], tuple[subprocess.Popen[str], str]],
) -> None:
    process, url = start()
    with urllib.request.urlopen(f"{url}/health") as answer:
        assert answer.status == 200
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert "0 ended unfinished" in process.stderr.read()
    assert process.wait() == 0


def test_flags_without_a_target_are_refused() -> None:
    result = CliRunner().invoke(cli, ["serve", "--port", "0"])
    assert result.exit_code == 2
    assert "target" in result.stderr
