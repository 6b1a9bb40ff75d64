"""The command line as a whole: help, exit codes, messages."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import paceline
from paceline import errors
from paceline.cli.main import COMMANDS, cli, exit_code
from paceline.errors import PacelineError

ROOT = Path(__file__).parents[2]


def test_help_lists_every_command_and_an_example() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.stdout for name in COMMANDS)
    assert "paceline generate --target" in result.stdout


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom paceline.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_page_of_its_own(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")


def test_the_version_is_the_package_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert paceline.__version__ == project["version"]
    assert CliRunner().invoke(cli, ["--version"]).stdout == f"paceline, version {project['version']}\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["generat"])
    assert result.exit_code == 2
    assert "No such command" in result.stderr


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> PacelineError:
    error = errors.ModelFileError(given="three bytes", expected="a model", remedy="Fetch it again")

    @click.command()
    def models() -> None:
        raise error

    monkeypatch.setattr("paceline.cli.models.models", models)
    return error


def test_an_error_is_one_message_on_stderr(failing: PacelineError) -> None:
    result = CliRunner().invoke(cli, ["models"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "Error: three bytes; expected a model. Fetch it again.\n"


def test_debug_lets_the_error_through(failing: PacelineError) -> None:
    result = CliRunner().invoke(cli, ["--debug", "models"])
    assert result.exception is failing


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ConfigError, 2),
        (errors.PromptTooLongError, 2),
        (errors.InvalidParameterError, 2),
        (errors.ModelNotFoundError, 2),
        (errors.ModelFileError, 1),
        (errors.HashMismatchError, 1),
        (errors.CapacityError, 1),
    ],
)
def test_exit_codes(kind: type[PacelineError], code: int) -> None:
    assert exit_code(kind("given", "expected", "remedy")) == code
