"""The schema of the configuration says of every key what it means, and takes what the reader takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from click.testing import CliRunner
from tests.config.test_server import EXAMPLE

from paceline.cli.main import cli
from paceline.config.schema import config_schema


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return config_schema()


def test_every_key_is_explained(schema: dict[str, Any]) -> None:
    parts = [
        schema,
        schema["properties"]["server"],
        schema["$defs"]["RouteSettings"],
        schema["$defs"]["ApiKey"],
    ]
    names = [(name, one) for part in parts for name, one in part["properties"].items()]
    assert len(names) > 40
    assert [name for name, one in names if not one.get("description")] == []


@pytest.mark.parametrize(
    "text",
    [
        EXAMPLE,
        "target: t\nkv_memory: 2GiB\nspeculation: on\ndrafter: suffix\nserver: {max_body_bytes: 1MB}",
        "target: t\nroutes: {a: {drafters: suffix, speculation: 'on'}}",
    ],
)
def test_what_the_reader_takes_is_valid(schema: dict[str, Any], text: str) -> None:
    jsonschema_rs.validator_for(schema).validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "text",
    [
        "server: {}",
        "target: t\nserver: {prot: 1}",
        "target: t\nroutes: {a: {speculation: maybe}}",
        "target: t\nx: 1",
    ],
)
def test_what_the_reader_refuses_is_not(schema: dict[str, Any], text: str) -> None:
    assert not jsonschema_rs.validator_for(schema).is_valid(yaml.safe_load(text))


def test_commands(tmp_path: Path, schema: dict[str, Any]) -> None:
    shown = CliRunner().invoke(cli, ["config", "schema"])
    assert json.loads(shown.stdout) == json.loads(json.dumps(schema))
    path = tmp_path / "paceline.yaml"
    path.write_text(EXAMPLE)
    assert "code (on)" in CliRunner().invoke(cli, ["config", "check", str(path)]).stdout
    path.write_text("target: t\nroutes: {a: {speculation: maybe}}")
    result = CliRunner().invoke(cli, ["config", "check", str(path)])
    assert result.exit_code == 2
    assert "'a'" in result.stderr
