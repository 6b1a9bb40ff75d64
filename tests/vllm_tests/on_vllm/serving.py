"""`paceline vllm serve` as a process, for tests: started, asked, stopped, started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from paceline.vllm.engine_file import EVERY_S

TOKEN, KEY, OTHER_KEY = "admin-token-of-tests", "key-of-team-a", "key-of-team-b"
ADMIN = {"Authorization": f"Bearer {TOKEN}"}
PROMPT = "Count: one two three four five six seven eight. one two three"
START_S, WAIT_S = 120.0, 20.0
COMMAND = "from paceline.cli.main import main; main()"


def values(model: Path) -> dict[str, Any]:
    return {
        "target": "smollm2-135m-instruct",
        "draft": "smollm2-135m-instruct",
        "context_length": 512,
        "max_num_seqs": 8,
        "vllm": {
            "model": str(model),
            "draft": str(model),
            "flags": [
                "--dtype",
                "float32",
                "--enforce-eager",
                "--per-request-spec-decode-metrics",
                "detailed",
            ],
        },
        "server": {
            "port": free_port(),
            "model_name": "tiny",
            "admin_token": TOKEN,
            "api_keys": {"team-a": {"key": KEY, "route": "code"}, "team-b": {"key": OTHER_KEY}},
            "shutdown_timeout_s": 0,
        },
        "routes": {
            "chat": {"speculation": "on", "draft_length": 4},
            "code": {"speculation": "on", "draft_length": 2},
            "batch": {"speculation": "off"},
        },
        "default_route": "chat",
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Serving:
    """The command, with a configuration of its own.

    Args:
        folder: of the configuration.
        model: folder of target and draft model alike.
        changes: to `values`; a value of None takes a key out.
    """

    def __init__(self, folder: Path, model: Path, **changes: Any) -> None:
        self.path = folder / "site.yaml"
        changed = {**values(model), **changes}
        self.values = {key: value for key, value in changed.items() if value is not None}
        self.write(self.values)
        self.log = folder / "log"
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.values['server']['port']}", timeout=60, trust_env=False
        )
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, changed: dict[str, Any]) -> None:
        self.path.write_text(yaml.safe_dump(changed, sort_keys=False))

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, "vllm", "serve", "--config", str(self.path)],
                stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            )  # fmt: skip
        process = self._process

        def is_up() -> bool:
            assert process.poll() is None, self.log.read_text()[-4000:]
            try:
                return self.http.get("/health").status_code == 200
            except httpx.TransportError:
                return False

        until(is_up, START_S)

    def stop(self, number: int = signal.SIGTERM, *, is_for_all: bool = False) -> int:
        """Send a signal, to all of its processes as a terminal does or to the first, and return its exit code
        once it has gone."""
        assert self._process is not None
        pid = self._process.pid
        (os.killpg if is_for_all else os.kill)(pid, number)
        code = self._process.wait(60)
        self._process = None
        until(lambda: not has_group(pid), WAIT_S)
        return code

    def close(self) -> None:
        """Stop it, whatever state it is in."""
        process = self._process
        try:
            if process is not None:
                self.stop()
        finally:
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            self.http.close()

    def ask(self, model: str = "tiny", *, key: str = OTHER_KEY, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
        body = {
            "model": model,
            "prompt": PROMPT,
            "max_tokens": 24,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }
        return self.http.post("/v1/completions", json=body, headers=headers)

    def stream(self, model: str, max_tokens: int) -> Iterator[dict[str, Any]]:
        """Yield the events of one answer."""
        body = {
            "model": model, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        headers = {"Authorization": f"Bearer {OTHER_KEY}"}
        with self.http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])
                elif line.startswith("data: "):
                    assert line == "data: [DONE]"
                    return
            raise AssertionError("a stream that was cut off")

    def admin(self, method: str, path: str, **options: Any) -> Any:
        answer = self.http.request(method, path, headers=ADMIN, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def route(self, name: str) -> dict[str, Any]:
        found = self.admin("GET", "/admin/routes")["routes"]
        one: dict[str, Any] = next(route for route in found if route["name"] == name)
        return one

    def series(self) -> dict[str, float]:
        """Return all series of `/metrics`, once nothing runs and the engine has said so."""

        def read() -> dict[str, float]:
            lines = [line for line in self.http.get("/metrics").text.splitlines() if line[:1] != "#"]
            return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

        time.sleep(2 * EVERY_S)  # what it said before the last request, it says no more then
        until(lambda: read().get("paceline_sequences_running") == 0.0, WAIT_S)
        return read()


def has_group(pid: int) -> bool:
    """Whether there are processes of that group still."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition: Callable[[], bool], most_s: float) -> None:
    """Wait for something that comes; the limit only keeps a test that fails from waiting for ever."""
    ends = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.05)


def drafts(answer: dict[str, Any]) -> tuple[int, int]:
    """Return (drafted, accepted) of an answer, as vLLM itself counted them."""
    found = _record(answer)
    return found.get("num_draft_tokens") or 0, found.get("num_accepted_draft_tokens") or 0


def steps(answer: dict[str, Any]) -> list[int]:
    """Return how many drafts each step of an answer verified, of those that verified any."""
    return _record(answer).get("per_step_drafted") or []


def _record(answer: dict[str, Any]) -> dict[str, Any]:
    return (answer.get("metrics") or {}).get("speculative_decoding") or {}
