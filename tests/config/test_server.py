"""The configuration of a server: read once, frozen, and refused with the key that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.config.file import load_serve_config
from paceline.config.routes import Speculation
from paceline.config.server import ServeSettings
from paceline.errors import ConfigError

EXAMPLE = """
target: qwen2.5-coder-1.5b-instruct
draft: qwen2.5-coder-0.5b-instruct
server:
  host: 127.0.0.1
  port: 8001
  admin_token: "an-admin-token"
  api_keys: {team-a: {key: "a-long-key", route: chat}}
routes:
  chat:  {speculation: auto, drafters: [suffix, model], max_draft_length: 8}
  code:  {speculation: on, drafters: [model], draft_length: 4}
  batch: {speculation: off}
default_route: chat
"""


def read(tmp_path: Path, text: str = EXAMPLE, **flags: Any) -> ServeSettings:
    path = tmp_path / "paceline.yaml"
    path.write_text(text)
    return load_serve_config(path, flags, environ={})


def test_the_example_is_understood(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert settings.server.port == 8001
    assert settings.server.api_keys["team-a"].route == "chat"
    assert [route.speculation for route in settings.engine.routes.values()] == ["auto", "on", "off"]
    assert settings.model_name == "qwen2.5-coder-1.5b-instruct"
    assert settings.state_path == tmp_path / "paceline.state.sqlite"
    assert settings.engine.decision_log == tmp_path / "paceline.decisions.jsonl"
    assert "an-admin-token" not in repr(settings)
    assert "a-long-key" not in repr(settings)


def test_flags_and_variables_win_key_by_key(tmp_path: Path) -> None:
    settings = read(tmp_path, server={"port": 9000, "host": None}, draft=None)
    assert (settings.server.port, settings.server.host) == (9000, "127.0.0.1")
    path = tmp_path / "paceline.yaml"
    changed = load_serve_config(path, environ={"PACELINE__SERVER__ADMIN_TOKEN": "another-token"})
    assert changed.server.admin_token is not None
    assert changed.server.admin_token.get_secret_value() == "another-token"
    assert changed.server.port == 8001


def test_flags_alone_make_one_route() -> None:
    settings = load_serve_config(flags={"target": "dir/some.model.gguf"}, environ={})
    assert dict(settings.engine.routes)["default"].speculation is Speculation.AUTO
    assert settings.engine.default_route == "default"
    assert settings.model_name == "some.model"
    assert settings.state_path is settings.engine.decision_log is None
    fixed = load_serve_config(
        flags={"target": "t", "drafter": "suffix", "speculation": "on", "draft_length": 3}, environ={}
    )
    route = fixed.engine.routes["default"]
    assert (route.speculation, route.fixed_length, route.drafters) == (Speculation.ON, 3, ("suffix",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target: t\nserver: {prot: 1}", "'port'"),
        ("target: t\nserver: 3", "mapping"),
        ("target: t\nserver: {port: 70000}", "port of server = 70000"),
        ("target: t\nserver: {api_keys: {a: {key: long-enough, rout: x}}}", "'route'"),
        ("target: t\nserver: {api_keys: {a: {key: long-enough, route: x}}}", "'default'"),
        ("target: t\nserver: {api_keys: {a: long-enough}}", "mapping"),
        ("target: t\nserver: {api_keys: {a: {key: same-key-here}, b: {key: same-key-here}}}", "in common"),
        ("target: t\nserver: {admin_tokens: {a: short}}", "8 characters"),
        ("target: t\nserver: {admin_tokens: {file: long-enough}}", "other than admin and file"),
        ("target: t\nserver: {admin_token: same-token, admin_tokens: {a: same-token}}", "in common"),
        ("target: t\nroutes: {'a b': {}}", "letters"),
        ("target: t\nroutes: {a: {drafters: [model]}}", "draft model"),
        ("target: t\nspeculation: on\ndrafter: suffix\nroutes: {a: {}}", "beside routes"),
        ("target: t\nserver: {model_name: 'a:b'}", "colon"),
        ("target: t\ndraft: d\ndrafts: {small: s}", "beside drafts"),
        ("target: t\ndrafts: {'a b': s}", "underscores"),
        ("target: t\ndrafts: {small: s}\ndrafter: 'model:smal'", "'model:small'"),
        (
            "target: t\ndrafts: {small: s}\nroutes: {a: {drafters: ['model:code']}}",
            "'model:code' of route 'a'",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)


def test_a_key_that_is_too_short_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "target: t\nserver: {admin_token: sesame}")
    assert "sesame" not in str(caught.value)
    assert "8" in str(caught.value)


def test_several_draft_models_are_named_in_routes(tmp_path: Path) -> None:
    text = """
        target: t
        drafts: {small: s, code: c}
        routes:
          all: {}
          first: {drafters: [suffix, model]}
          code: {drafters: ["model:code"], speculation: on}
    """
    settings = read(tmp_path, text)
    assert settings.engine.draft_models == {"model:small": "s", "model:code": "c"}
    assert {name: route.drafters for name, route in settings.engine.routes.items()} == {
        "all": ("suffix", "model:small", "model:code"),
        "first": ("suffix", "model:small"),
        "code": ("model:code",),
    }
    assert settings.engine.effective_drafter == "model:small"
    single = read(tmp_path, "target: t\ndrafts: {small: s}", draft="d")
    assert single.engine.draft_models == {"model": "d"}, "flags win over the file"
