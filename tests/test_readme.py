"""The README's promises: its Python example runs, and its commands exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from paceline.cli.main import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.models
def test_the_python_example_runs(
    preset_path: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"## Use it from Python\n+```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) == 8
    for preset in re.findall(r'(?:target|draft)="([^"]+)"', code):
        preset_path(preset)
    # The smallest change that makes it quick: fewer tokens.
    quick, num_changed = re.subn(r"max_tokens=\d+", "max_tokens=6", code)
    assert num_changed == 1
    exec(compile(quick, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert len(shown.split()) > 4
    assert re.search(r" (None|[01]\.\d+|[01]) \d+\.\d+$", shown.strip())


def test_the_first_screen_names_both_commands() -> None:
    first_screen = "\n".join(README.splitlines()[:24])
    assert "make demo" in first_screen
    assert "make test" in first_screen
    targets = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{name}\s", targets, re.MULTILINE), f"make {name}"


@pytest.mark.parametrize(("command", "least"), [("generate", 8), ("bench load", 5)])
def test_every_flag_that_it_names_exists(command: str, least: int) -> None:
    help_text = CliRunner().invoke(cli, [*command.split(), "--help"]).output
    calls = re.findall(rf"paceline {command} (.*?)\n(?:\n|```)", README, re.DOTALL)
    flags = {flag for call in calls for flag in re.findall(r"--[a-z-]+", call)}
    assert len(flags) > least
    assert all(flag in help_text for flag in flags)


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"
