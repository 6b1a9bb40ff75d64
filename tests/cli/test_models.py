"""`paceline models`: pull and list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.main import cli
from paceline.models import download
from paceline.models.presets import PRESETS, HubFile, PackageParts, Preset
from support.hub import FakeHub

CONTENT = b"weights" * 1000
PRESET = Preset(
    "a-model",
    "a model for tests",
    hashlib.sha256(CONTENT).hexdigest(),
    len(CONTENT),
    "none",
    HubFile("someone/a-model", "model.gguf"),
    PackageParts("a-model", "1.0", 1, "x"),
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with the one preset there is, and an empty cache."""
    with FakeHub("/someone/a-model/resolve/main/model.gguf", CONTENT).running() as hub:
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        for name in list(PRESETS):
            monkeypatch.delitem(PRESETS, name)
        monkeypatch.setitem(PRESETS, "a-model", PRESET)
        yield hub


def test_pull_prints_the_path_on_stdout_and_the_rest_on_stderr(hub: FakeHub, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["models", "pull", "a-model"])
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'models' / 'a-model.gguf'}\n"
    assert "fetching a-model from the hub" in result.stderr


def test_pull_checks_every_name_before_it_fetches(hub: FakeHub) -> None:
    result = CliRunner().invoke(cli, ["models", "pull", "a-model", "a-modle"])
    assert result.exit_code == 2
    assert "'a-modle'" in result.stderr
    assert "Did you mean a-model" in result.stderr
    assert hub.requests == []


def test_an_interrupted_pull_says_how_to_go_on(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "fetch_from_hub", interrupt)
    result = CliRunner().invoke(cli, ["models", "pull", "a-model"])
    assert result.exit_code == 1
    assert "What has come is kept; run the same command to go on." in result.stderr


def test_list_shows_what_is_cached(hub: FakeHub) -> None:
    before = CliRunner().invoke(cli, ["models", "list"])
    CliRunner().invoke(cli, ["models", "pull", "a-model"])
    after = CliRunner().invoke(cli, ["models", "list"])
    header, row = before.stdout.splitlines()
    assert header.split() == ["NAME", "SIZE", "CACHED", "LICENCE", "WHAT", "IT", "IS"]
    assert row.split()[:4] == ["a-model", "7", "kB", "no"]
    assert after.stdout.splitlines()[1].split()[:4] == ["a-model", "7", "kB", "yes"]


def test_list_as_json(hub: FakeHub) -> None:
    result = CliRunner().invoke(cli, ["models", "list", "--json"])
    assert json.loads(result.stdout) == [
        {
            "name": "a-model",
            "summary": "a model for tests",
            "size": len(CONTENT),
            "sha256": PRESET.sha256,
            "license": "none",
            "has_chat_template": True,
            "path": None,
        }
    ]
