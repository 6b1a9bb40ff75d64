"""A newcomer's way through the README: a server that captures, a report on what it captured, and a server
that the report configures. The answers on both ends are the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from paceline.measure.report.build import schema
from tests.test_readme_server import BLOCKS as SERVER_BLOCKS
from tests.test_readme_server import ROOT, SMALL, free_port

SECTION = (ROOT / "README.md").read_text().split("## Measure before you commit")[1].split("\n## ")[0]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", SECTION, re.DOTALL)
CHANGES = {
    "--budget 15m": "--budget 6s --max-tokens 8 --kv-memory 128MiB",
    "--concurrency 1,8": "--concurrency 1,2",
}
"""The smallest changes that make it quick, beside a small pair and a free port."""


@contextmanager
def served(command: str, folder: Path, environ: dict[str, str]) -> Iterator[None]:
    """Run the command of a server until the block ends, from when it listens on."""
    server = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=folder, env=environ, stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        said = []
        for line in server.stderr:
            said.append(line)
            if "http://127.0.0.1:" in line:
                break
        else:
            raise AssertionError("".join(said))
        yield
    finally:
        server.terminate()
        server.wait()
        server.stderr.close()


@pytest.mark.models
def test_from_captured_traffic_to_a_server_that_the_report_configures(
    tmp_path: Path, preset_path: Callable[[str], Path]
) -> None:
    preset_path(SMALL)
    assert [kind for kind, _ in BLOCKS] == ["yaml", "sh", "sh"]
    port = str(free_port())

    def quick(text: str) -> str:
        text = re.sub(r"qwen2\.5-coder-\d\.?\db-instruct", SMALL, text).replace("8000", port)
        for written, changed in CHANGES.items():
            text = text.replace(written, changed)
        return text

    _, config, serve, app, _ = (quick(text) for _, text in SERVER_BLOCKS)
    capture, measure, serve_again = (quick(text) for _, text in BLOCKS)
    (tmp_path / "paceline.yaml").write_text(config + capture)
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "other.py").write_text(app.replace("Write quicksort", "Write a loop").replace(":code", ""))
    (tmp_path / "paceline").write_text(f"#!{sys.executable}\nfrom paceline.cli.main import main\nmain()\n")
    (tmp_path / "paceline").chmod(0o755)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    serving = {**environ, "PACELINE__KV_MEMORY": "128MiB", "PACELINE__SERVER__PORT": port}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with served(serve, tmp_path, serving):
        before = run(sys.executable, "app.py")
        run(sys.executable, "other.py")
    summary = run("bash", "-ec", measure)
    assert "How to reverse it" in summary

    report = json.loads((tmp_path / "report" / "report.json").read_text())
    jsonschema_rs.validator_for(schema()).validate(report)
    assert {one["name"]: one["num_prompts"] for one in report["routes"]} == {"code": 1, "chat": 1}
    assert report["num_identical"] == report["num_outputs"] > 0
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000
    recommended = yaml.safe_load((tmp_path / "report" / "paceline.yaml").read_text())
    assert set(recommended["routes"]) == {"code", "chat"}

    with served(serve_again, tmp_path, serving):
        assert run(sys.executable, "app.py") == before
    assert len(before) > 100
