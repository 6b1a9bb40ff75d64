"""Starts that fail say why and leave nothing; and a cluster that was there stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ray.running import ADMIN, MODEL, arguments, descendants, environment, serving, until, write

pytestmark = pytest.mark.models


def start(path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments(path, *more),
        capture_output=True,
        text=True,
        env=environment(),
        cwd=path.parent,
        timeout=150,
    )


def test_a_model_that_is_not_there_is_said_before_ray_starts(tmp_path: Path) -> None:
    found = start(write(tmp_path / "paceline.yaml", target="smollm2-135m-instruckt"))
    assert found.returncode == 2
    assert "Write smollm2-135m-instruct if you meant that" in found.stderr
    assert "Ray" not in found.stderr


def test_replicas_that_cannot_load_say_why(tmp_path: Path) -> None:
    found = start(write(tmp_path / "paceline.yaml", kv_memory=1000))
    assert found.returncode == 1
    assert "Error: replicas that do not start: " in found.stderr
    assert "Raise kv_memory (--kv-memory)" in found.stderr
    assert descendants(os.getpid()) == []


def test_a_port_that_is_taken_is_said_before_ray_starts(tmp_path: Path) -> None:
    path = write(tmp_path / "paceline.yaml")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = start(path, "--port", str(port))
    assert found.returncode == 2
    assert f"127.0.0.1:{port}" in found.stderr


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def ray_head(port: int) -> Iterator[None]:
    """Run a cluster of its own, and end exactly that one: `ray stop` would end all of a machine's."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [
                str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--port={port}",
                "--num-cpus=2", "--include-dashboard=false", "--object-store-memory=100000000",
                f"--temp-dir={folder}",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
        )  # fmt: skip
        try:
            until(lambda: is_taken(port))
            yield
        finally:
            below = descendants(process.pid)
            process.terminate()
            process.wait(60)
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def is_taken(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_an_existing_cluster_is_used_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with ray_head(port):
        monkeypatch.setenv("RAY_AUTH_MODE", "token")  # as Ray sets up a head node unless told otherwise
        address = f"127.0.0.1:{port}"
        path = write(tmp_path / "paceline.yaml")
        refused = start(path, "--address", address)
        assert refused.returncode == 2
        assert "port 0 on a cluster" in refused.stderr
        refused = start(path, "--address", address, "--port", str(free_port()), "--threads", "4000")
        assert refused.returncode == 2
        assert "Lower threads or --replicas, or add nodes" in refused.stderr
        with serving(path, "--address", address, "--port", str(free_port())) as server:
            assert re.search(r"2 replicas of 1 threads\), on the head node [0-9.]+", server.lines[-1])
            with server.http() as http:
                body = {"model": MODEL, "prompt": "x", "max_tokens": 4}
                assert http.post("/v1/completions", json=body).status_code == 200
                answer = http.patch("/admin/routes/code", json={"speculation": "off"}, headers=ADMIN)
                assert answer.status_code == 200
            second = start(path, "--address", address, "--port", str(free_port()))
            assert second.returncode == 2
            assert "Ray Serve runs already" in second.stderr
            with server.http() as http:
                assert http.post("/v1/completions", json=body).status_code == 200, "the first one goes on"
            assert server.stop() == 0
        code = f"import ray; ray.init('{address}'); print(ray.util.list_named_actors(True))"
        alive = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, env=environment(), timeout=60,
        )  # fmt: skip
        assert alive.stdout.strip() == "[]", alive
