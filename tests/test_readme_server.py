"""The README's way from an installation to a metric that shows a flipped switch, followed to the letter."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECTION = (ROOT / "README.md").read_text().split("## Put it in front of your app")[1].split("\n## ")[0]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", SECTION, re.DOTALL)
SMALL = "smollm2-135m-instruct"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_what_it_installs_is_what_the_server_needs() -> None:
    assert BLOCKS[0] == ("sh", "pip install '.[server]' openai\n")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {re.split("[><=]", one)[0] for one in extras["server"]}
    assert {"fastapi", "uvicorn", "prometheus-client"} <= needed


@pytest.mark.models
def test_from_a_configuration_to_the_metric(tmp_path: Path, preset_path: Callable[[str], Path]) -> None:
    preset_path(SMALL)
    kinds = [kind for kind, _ in BLOCKS]
    assert kinds == ["sh", "yaml", "sh", "python", "sh"]
    # The smallest changes that make it quick and let it run beside others: a small pair, a free port.
    port = str(free_port())

    def quick(text: str) -> str:
        text = re.sub(r"qwen2\.5-coder-\d\.?\db-instruct", SMALL, text).replace("8000", port)
        return text.replace("python app.py", f"{sys.executable} app.py")

    _, config, serve, app, commands = (quick(text) for _, text in BLOCKS)
    (tmp_path / "paceline.yaml").write_text(config)
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "paceline").write_text(f"#!{sys.executable}\nfrom paceline.cli.main import main\nmain()\n")
    (tmp_path / "paceline").chmod(0o755)
    if shutil.which("curl") is None:
        show = "import sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(sys.argv[-1]).read())"
        (tmp_path / "curl").write_text(f"#!{sys.executable}\n{show}\n")
        (tmp_path / "curl").chmod(0o755)
    environ = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PACELINE__KV_MEMORY": "256MiB",
    }
    server = subprocess.Popen(
        ["bash", "-c", f"exec {serve}"], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        assert any(f"http://127.0.0.1:{port}" in line for line in server.stderr)
        done = subprocess.run(
            ["bash", "-ec", commands.replace(" app.py\n", " app.py; echo; echo ---\n")],
            cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        server.kill()
        server.wait()
        assert server.stderr is not None
        server.stderr.close()
    assert done.returncode == 0, done.stderr
    first, middle, rest = done.stdout.split("---\n")
    assert len(first) > 100
    assert middle.endswith(first)
    assert "off: a person wants it so" in middle
    assert "admin: speculating -> off" in rest
    assert re.search(r'paceline_route_state\{route="code",state="off"\} 1\.0', rest)
    assert re.search(r'paceline_drafted_tokens_total\{drafter="\w+",route="code"\} [1-9]', rest)
