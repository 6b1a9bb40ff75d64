"""`paceline models`: pull, list and inspect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.main import cli
from paceline.models import download
from paceline.models.presets import HubFile, PackageParts, Preset
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
        for module in ("cli.models", "models.download"):
            monkeypatch.setattr(f"paceline.{module}.PRESETS", {"a-model": PRESET})
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
    assert "Write a-model if you meant that" in result.stderr
    assert hub.requests == []


def test_an_interrupted_pull_says_how_to_go_on(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "fetch_from_hub", interrupt)
    result = CliRunner().invoke(cli, ["models", "pull", "a-model"])
    assert result.exit_code == 130
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


@pytest.mark.models
def test_inspect_shows_the_figures(preset_path: Callable[[str], Path]) -> None:
    path = preset_path("smollm2-135m-instruct")
    result = CliRunner().invoke(cli, ["models", "inspect", str(path)])
    assert result.exit_code == 0
    fields = {line[:13].strip(): line[13:].strip() for line in result.stdout.split("\n\n")[0].splitlines()}
    assert fields["architecture"] == "llama"
    assert fields["parameters"] == "134,515,008"
    assert fields["context"] == "8,192 tokens"
    assert fields["KV cache"] == "46 kB a token"
    assert fields["chat template"] == "yes"
    assert "Q4_1         210      106,168,320  66 MB" in result.stdout


@pytest.mark.models
def test_inspect_as_json(preset_path: Callable[[str], Path]) -> None:
    path = preset_path("smollm2-135m-instruct")
    result = CliRunner().invoke(cli, ["models", "inspect", "--json", str(path)])
    found = json.loads(result.stdout)
    assert found["kv_bytes_per_token"] == 46_080
    assert found["tensor_types"][0]["type"] == "Q4_1"


def test_inspect_of_something_else_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("no model")
    result = CliRunner().invoke(cli, ["models", "inspect", str(tmp_path / "note.txt")])
    assert result.exit_code == 1
    assert "expected b'GGUF'" in result.stderr


def test_inspect_of_nothing_lists_the_presets() -> None:
    result = CliRunner().invoke(cli, ["models", "inspect", "nowhere.gguf"])
    assert result.exit_code == 2
    assert "smollm2-135m-instruct" in result.stderr
