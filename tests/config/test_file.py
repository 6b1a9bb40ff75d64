"""Settings from a file, the environment and flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.engine import EngineSettings
from paceline.config.file import load_config
from paceline.config.routes import Speculation
from paceline.errors import ConfigError

FILE = """
target: small.gguf
draft: smaller.gguf
max_num_seqs: 4
routes:
  chat: {speculation: auto, drafters: [suffix, model], max_draft_length: 8}
  code: {speculation: on, drafters: [model], draft_length: 4}
  batch: {speculation: off}
default_route: chat
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "paceline.yaml"
    path.write_text(FILE)
    return path


def test_a_file_is_read_with_unquoted_on_and_off(path: Path) -> None:
    settings = load_config(path, environ={})
    assert (settings.target, settings.max_num_seqs, settings.default_route) == ("small.gguf", 4, "chat")
    said = {name: route.speculation for name, route in settings.routes.items()}
    assert said == {"chat": Speculation.AUTO, "code": Speculation.ON, "batch": Speculation.OFF}
    assert settings.is_adaptive


def test_the_environment_wins_over_the_file_and_flags_over_both(path: Path) -> None:
    environ = {
        "PACELINE__ROUTES__CHAT__SPECULATION": "off",
        "PACELINE__ROUTES__NEW__WEIGHT": "2.5",
        "PACELINE__MAX_NUM_SEQS": "6",
        "PACELINE_CACHE": "/elsewhere",
    }
    settings = load_config(path, {"max_num_seqs": 9, "threads": None}, environ)
    assert settings.routes["chat"].speculation is Speculation.OFF
    assert settings.routes["chat"].max_draft_length == 8
    assert settings.routes["new"].weight == 2.5
    assert settings.max_num_seqs == 9
    assert load_config(path, None, environ).max_num_seqs == 6


def test_no_file_is_needed() -> None:
    assert load_config(flags={"target": "t"}, environ={}) == EngineSettings(target="t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n", "with a list at its top; expected a mapping of keys"),
        ("target: [\n", "line 2: "),
        ("target: t\ncolour: blue\n", "unknown setting 'colour'"),
        ("target: t\nroutes: {chat: {speed: 3}}\n", "unknown key 'speed' of a route ('chat')"),
        ("target: t\nroutes: {chat: fast}\n", "route 'chat' = 'fast'; expected a mapping"),
        (
            "target: t\ndefault_route: chat\n",
            "default_route = 'chat'; expected one of the routes: there is none",
        ),
        ("target: t\nspeculation: maybe\n", "speculation = 'maybe'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "paceline.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing.yaml.*expected a readable YAML file"):
        load_config(tmp_path / "nothing.yaml", environ={})


def test_a_variable_without_a_key_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match="PACELINE__ROUTES____X"):
        load_config(path, environ={"PACELINE__ROUTES____X": "1"})


def test_speculation_is_on_off_or_auto() -> None:
    assert [EngineSettings(target="t", speculation=word).speculation for word in ("on", "off", "auto")] == [
        True,
        False,
        "auto",
    ]
    auto = EngineSettings(target="t", speculation="auto", drafter="suffix", max_draft_length=5)
    assert auto.open_route.drafters == ("suffix",)
    assert auto.open_route.most_drafts == 5
    assert auto.speculation_params.is_adaptive
    assert EngineSettings(target="t", speculation="auto", drafter="none").speculation_params.enabled is False
