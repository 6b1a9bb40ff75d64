"""What Ray adds to a token: CPU time of each process on its way, from the engine to the client.

    python benchmarks/ray_hops.py [--replicas 2] [--streams 4] [--tokens 256] [--rounds 5] [--target NAME]

`paceline ray serve` runs as it would for anybody. In each round, streams are read by this process, and the
CPU time that every process below it took, as the kernel counts it, is divided by the tokens that came. Some
seconds without requests say what is taken for nothing. CPU time hardly depends on what else the machine does;
speed does, and is not looked at."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

IDLE_S = 10.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
NAMES = {
    "ray::ServeReplica:paceline:Replica": "replicas",
    "ray::ServeReplica:paceline:Front": "front",
    "ray::ProxyActor": "proxy",
    "ray::ServeController": "controller",
    "ray::Hub": "hub",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--target", default="smollm2-135m-instruct")
    options = parser.parse_args()
    with serving(options.target, options.replicas) as (pid, url), httpx.Client(trust_env=False) as http:
        read(http, url, options.streams, 16)  # the first requests start what waits to be needed
        before = cpu_seconds(pid)
        time.sleep(IDLE_S)
        idle = {name: spent / IDLE_S for name, spent in difference(cpu_seconds(pid), before).items()}
        rounds: list[dict[str, float]] = []
        for _ in range(options.rounds):
            before, begun = cpu_seconds(pid), time.perf_counter()
            num_tokens = read(http, url, options.streams, options.tokens)
            took = time.perf_counter() - begun
            spent = difference(cpu_seconds(pid), before)
            rounds.append(
                {name: 1000 * (spent[name] - took * idle.get(name, 0)) / num_tokens for name in spent}
            )
        print(f"{'process':12} {'ms / token':>10} {'idle, % of a CPU':>17} {'resident, MB':>13}")
        memory = resident_mb(pid)
        for name in sorted(memory):
            each = statistics.median(one.get(name, 0.0) for one in rounds)
            print(f"{name:12} {each:10.2f} {100 * idle.get(name, 0):17.1f} {memory[name]:13.0f}")


@contextmanager
def serving(target: str, num_replicas: int) -> Iterator[tuple[int, str]]:
    """Serve while the block runs; gives the process and the address."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "paceline.yaml"
        limits = {"context_length": 2048, "kv_memory": "128MiB", "calibration": "off"}
        path.write_text(
            yaml.safe_dump({"target": target, "server": {"port": 0}, "speculation": "off", **limits})
        )
        code = "from paceline.cli.main import main; main()"
        command = [sys.executable, "-c", code, "ray", "serve", "--config", str(path)]
        process = subprocess.Popen(
            [*command, "--replicas", str(num_replicas)], stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if line.startswith(("serving", "Error")))
            assert line.startswith("serving"), line
            yield process.pid, line.split(" at ")[1].split(" ")[0]
        finally:
            process.terminate()
            process.communicate()


def read(http: httpx.Client, url: str, num_streams: int, num_tokens: int) -> int:
    """Read streams at once; returns the tokens that came."""

    def one(number: int) -> int:
        body = {
            "model": http.get(f"{url}/v1/models").json()["data"][0]["id"], "prompt": f"Rider {number} says:",
            "max_tokens": num_tokens, "ignore_eos": True, "stream": True, "temperature": 0.0,
        }  # fmt: skip
        with http.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as answer:
            return sum(line.startswith('data: {"id"') for line in answer.iter_lines()) - 1

    with ThreadPoolExecutor(num_streams) as pool:
        return sum(pool.map(one, range(num_streams)))


def processes(pid: int) -> Iterator[tuple[str, Path]]:
    """Give the name and the folder in /proc of a process and of all below it."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        below.setdefault(parent, []).append(int(stat.parent.name))
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        waiting += below.get(one, [])
        folder = Path(f"/proc/{one}")
        title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        name = next((name for begin, name in NAMES.items() if title.startswith(begin)), "rest of Ray")
        yield "command" if one == pid else name, folder


def cpu_seconds(pid: int) -> Counter[str]:
    """Return the CPU time that processes took since they started, by name."""
    found: Counter[str] = Counter()
    for name, folder in processes(pid):
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        found[name] += (int(fields[11]) + int(fields[12])) * TICK_S  # type: ignore[assignment]
    return found


def resident_mb(pid: int) -> Counter[str]:
    """Return the memory that processes hold, by name; what they share counts in each."""
    found: Counter[str] = Counter()
    for name, folder in processes(pid):
        found[name] += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 10**6
    return found


def difference(after: Counter[str], before: Counter[str]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after}


if __name__ == "__main__":
    main()
