"""Environment variables: each one read, checked, and unknown ones named."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from paceline.config.paths import cache_dir, models_dir
from paceline.config.settings import VARIABLES, load_settings
from paceline.errors import ConfigError


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load_settings({})
    assert settings.cache == Path.home() / ".cache" / "paceline"
    assert (settings.isa, settings.hf_endpoint, settings.hf_token, settings.hf_offline) == (
        None,
        None,
        None,
        False,
    )


def test_every_variable_is_read(tmp_path: Path) -> None:
    environ = {
        "PACELINE_CACHE": str(tmp_path),
        "PACELINE_ISA": " avx2 ",
        "PACELINE_URL": "http://127.0.0.1:9000/",
        "PACELINE_ADMIN_TOKEN": " token ",
        "HF_ENDPOINT": "http://mirror.example/",
        "HF_TOKEN": " secret ",
        "HF_HUB_OFFLINE": "1",
    }
    assert environ.keys() == VARIABLES.keys()
    settings = load_settings(environ)
    assert settings.cache == tmp_path
    assert settings.isa == "avx2"
    assert (settings.url, settings.admin_token) == ("http://127.0.0.1:9000", "token")
    assert settings.hf_endpoint == "http://mirror.example"
    assert settings.hf_token == "secret"
    assert settings.hf_offline is True


def test_settings_are_frozen_and_hide_the_token() -> None:
    settings = load_settings({"HF_TOKEN": "secret"})
    assert "secret" not in repr(settings)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.hf_token = None  # type: ignore[misc]


def test_the_cache_moves_with_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    assert models_dir() == tmp_path / "models"


def test_a_home_sign_in_the_cache_is_expanded() -> None:
    assert load_settings({"PACELINE_CACHE": "~/models"}).cache == Path.home() / "models"


def test_an_unknown_variable_is_named_with_the_nearest_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_settings({"PACELINE_CASHE": "/somewhere"})
        load_settings({"PACELINE_CASHE": "/somewhere"})
    assert caplog.messages == [
        "environment variable PACELINE_CASHE is unknown and has no effect; the nearest is PACELINE_CACHE"
    ]


@pytest.mark.parametrize("word", ["", "0", "false", "NO", "off"])
def test_words_for_no(word: str) -> None:
    assert load_settings({"HF_HUB_OFFLINE": word}).hf_offline is False


@pytest.mark.parametrize("word", ["1", "true", "YES", "on"])
def test_words_for_yes(word: str) -> None:
    assert load_settings({"HF_HUB_OFFLINE": word}).hf_offline is True


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("HF_HUB_OFFLINE", "perhaps", "Set HF_HUB_OFFLINE to 1 or 0"),
        ("HF_ENDPOINT", "mirror.example", "Correct HF_ENDPOINT"),
        ("HF_ENDPOINT", "ftp://mirror.example", "Correct HF_ENDPOINT"),
        ("PACELINE_CACHE", __file__, "Set PACELINE_CACHE to a folder"),
    ],
)
def test_a_wrong_value_is_refused_with_its_remedy(name: str, value: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({name: value})
    assert f"{name}={value}" in caught.value.given
    assert remedy in caught.value.remedy
