"""`paceline ray serve` as a process of its own, with the processes that Ray starts below it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

TOKEN = "admin-token-of-tests"
ADMIN = {"Authorization": f"Bearer {TOKEN}"}
MODEL = "smollm2-135m-instruct"
WITHIN_S = 120.0
REPLICA = "ray::ServeReplica:paceline:Replica"


def configuration(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "target": MODEL,
        "context_length": 1024,
        "kv_memory": "96MiB",
        "max_num_seqs": 4,
        "calibration": "off",
        "server": {"port": 0, "admin_token": TOKEN, "max_queued": 6, "max_body_bytes": 20_000},
        "routes": {
            "chat": {"speculation": "auto", "drafters": ["suffix"]},
            "code": {"speculation": True, "drafters": ["suffix"], "draft_length": 4},
            "plain": {"speculation": False},
        },
        "default_route": "chat",
    }
    return {**values, **changes}


@dataclass
class Running:
    """A server that runs."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str] = field(default_factory=list)

    def http(self, timeout: float = 90.0) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout, trust_env=False)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(WITHIN_S)

    def pids(self, title: str = REPLICA) -> list[int]:
        """Return the processes of that title below this server."""
        return [pid for pid in descendants(self.process.pid) if title_of(pid).startswith(title)]


def arguments(path: Path, *more: str) -> list[str]:
    main = "from paceline.cli.main import main; main()"
    return [sys.executable, "-c", main, "ray", "serve", "--config", str(path), *more]


def environment() -> dict[str, str]:
    """Return this process's, with paths that hold in every folder: Ray's processes work in their own."""
    path = os.environ.get("PYTHONPATH", "")
    absolute = [str(Path(one).absolute()) for one in path.split(os.pathsep) if one]
    return {**os.environ, **({"PYTHONPATH": os.pathsep.join(absolute)} if absolute else {})}


@contextlib.contextmanager
def serving(path: Path, *more: str, num_replicas: int = 2) -> Iterator[Running]:
    """Serve while the block runs, and leave no process behind."""
    process = subprocess.Popen(
        arguments(path, "--replicas", str(num_replicas), *more),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment(),
        cwd=path.parent,
    )
    lines: list[str] = []
    is_told = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip())
            if line.startswith("serving "):
                is_told.set()
        is_told.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert is_told.wait(WITHIN_S), lines
        said = [line for line in lines if line.startswith("serving ")]
        assert said, lines
        yield Running(process, said[0].split(" at ")[1].split(" ")[0], lines)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(WITHIN_S)
        finally:
            process.kill()
            reader.join()
            assert process.stderr is not None
            process.stderr.close()


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(configuration(**changes)))
    return path


def sse_events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream, which has to end as one does."""
    is_over = False
    for line in answer.iter_lines():
        if line.startswith("data: "):
            assert not is_over
            if line == "data: [DONE]":
                is_over = True
            else:
                yield json.loads(line.removeprefix("data: "))
    assert is_over


Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(http: httpx.Client) -> Series:
    answer = http.get("/metrics")
    assert answer.status_code == 200, answer.text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def total(series: Series, name: str, **labels: str) -> float:
    """Return the sum of the series that have these labels."""
    return sum(
        value
        for (found, its), value in series.items()
        if found == name and labels.items() <= dict(its).items()
    )


def replicas_of(series: Series, name: str) -> Counter[str]:
    """Return the sum of a metric for each replica."""
    found: Counter[str] = Counter()
    for (other, labels), value in series.items():
        if other == name:
            found[dict(labels)["replica"]] += value
    return found


def until(is_so: Any, within_s: float = WITHIN_S) -> None:
    """Wait for something that has to come; the time is only so that a test ends."""
    ends_at = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends_at, "it did not come"
        time.sleep(0.2)


def descendants(pid: int) -> list[int]:
    """Return all processes below one."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            below.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        children = below.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
