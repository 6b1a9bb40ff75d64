"""Routes reach the engine core whole, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.routes import RouteSettings, Speculation
from paceline.errors import ConfigError
from paceline.vllm.bridge import Bridge, BridgeOptions, replace_json
from paceline.vllm.routes_file import RouteEntry, RoutesFile, RoutesWatcher, read_routes, write_routes


def routes(version: int = 1, **speculation: str) -> RoutesFile:
    entries = {
        name: RouteEntry(RouteSettings(speculation=word), by="ann")
        for name, word in (speculation or {"chat": "auto", "batch": "off"}).items()
    }
    return RoutesFile(version, next(iter(entries)), entries)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = Bridge(tmp_path / "made" / "here").routes_path
    entries = {
        "chat": RouteEntry(RouteSettings(speculation="on", draft_length=3, drafters=("model",)), "ann"),
        "batch": RouteEntry(RouteSettings(speculation="off", weight=0.25, max_draft_length=2)),
    }
    write_routes(path, RoutesFile(7, "batch", entries))
    assert read_routes(path) == RoutesFile(7, "batch", entries)
    assert [one.name for one in path.parent.iterdir()] == ["routes.json"]


def test_a_watcher_reads_each_change_once(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    watcher = RoutesWatcher(path)
    assert watcher.poll() is None
    assert watcher.error is not None
    assert "No such file" in watcher.error
    for version in (1, 2, 3):
        write_routes(path, routes(version))
        found = watcher.poll()
        assert found is not None
        assert found.version == version
        assert watcher.error is None
        assert watcher.poll() is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{", "JSONDecodeError"),
        ([], "format 'list', not 1"),
        ({"format": 2}, "format 2, not 1"),
        ({"version": 0}, "a number from 1"),
        ({"version": True}, "a number from 1"),
        ({"default_route": "nobody"}, "default_route = 'nobody'"),
        ({"routes": {"chat": {"by": "ann"}}}, "by whom they were changed"),
        ({"routes": {"chat": {"by": "ann", "settings": {"speculation": "maybe"}}}}, "speculation = 'maybe'"),
        ({"routes": {"chat": {"by": "ann", "settings": {"colour": 1}}}}, "unknown key 'colour'"),
    ],
)
def test_a_broken_file_is_refused_and_said(tmp_path: Path, value: Any, words: str) -> None:
    path = tmp_path / "routes.json"
    watcher = RoutesWatcher(path)
    write_routes(path, routes())
    assert watcher.poll() == routes()
    if isinstance(value, dict):
        value = {**routes(2).to_json(), **value}
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    assert watcher.poll() is None
    assert watcher.error is not None
    assert words in watcher.error
    write_routes(path, routes(3))
    assert watcher.poll() == routes(3)
    assert watcher.error is None


def test_a_file_that_goes_away_is_said_and_taken_again_when_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    watcher = RoutesWatcher(path)
    write_routes(path, routes())
    assert watcher.poll() is not None
    path.unlink()
    assert watcher.poll() is None
    assert watcher.error is not None
    write_routes(path, routes())
    assert watcher.poll() == routes()


def test_a_writing_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "routes.json"
    write_routes(path, routes())
    with pytest.raises(ValueError, match="not JSON compliant"):
        replace_json(path, {"format": float("nan")})
    assert read_routes(path) == routes()
    assert list(tmp_path.iterdir()) == [path]


def test_options_of_the_engine_core(tmp_path: Path) -> None:
    options = BridgeOptions(tmp_path, skips_drafting=False)
    assert BridgeOptions.of({"other": 1, "paceline": options.to_json()}) == options
    assert BridgeOptions.of({"paceline": {"bridge": "/run/x"}}) == BridgeOptions(Path("/run/x"))


@pytest.mark.parametrize(
    "given", [None, {}, {"paceline": "x"}, {"paceline": {}}, {"paceline": {"bridge": "x", "brigde": 1}}]
)
def test_options_that_are_none(given: Any) -> None:
    with pytest.raises(ConfigError, match="bridge"):
        BridgeOptions.of(given)


def test_settings_keep_their_kinds() -> None:
    found = RoutesFile.from_json(json.loads(json.dumps(routes().to_json())))
    assert found.routes["batch"].settings.speculation is Speculation.OFF
    assert found.routes["chat"].by == "ann"
