"""Thousands of requests to a server on loopback, of all routes at once, a tenth of whom leave.

    python -m verify.server_soak                      # 10,000 requests on a tiny model, some minutes
    python -m verify.server_soak --requests 1000

Each request has a seed, so that its answer is known from a first, plain run. Held to: every answer that was
waited for comes once, whole, and is that one; whoever leaves costs nothing that stays; at the end no KV block
is held, and memory has not grown since the first fifth. Exit code 0 means that all of it was so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.tiny_models import TinyModel

from paceline.config.file import load_serve_config
from paceline.server.serve import load, new_event_loop, serve

PROMPTS = ("the def", "return in", "to he th", "def re ret urn")
ROUTES = ("chat", "code", "batch")
SEEDS = 5
MAX_TOKENS = 12
PAGE_BYTES = 4096
GROWTH = 0.05
"""Of resident memory, that counts as flat."""


@dataclass
class Tally:
    """What happened."""

    expected: dict[tuple[str, int], str]
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)


def body(prompt: str, seed: int, route: str, stream: bool) -> dict[str, Any]:
    """Return a request whose answer its seed settles."""
    return {
        "model": f"tiny:{route}", "prompt": prompt, "seed": seed, "max_tokens": MAX_TOKENS, "stream": stream,
        "ignore_eos": True,
    }  # fmt: skip


async def ask(http: httpx.AsyncClient, tally: Tally, rng: random.Random) -> None:
    """Send one request, and leave it or hold its answer against what it has to be."""
    prompt, seed, route = rng.choice(PROMPTS), rng.randrange(SEEDS), rng.choice(ROUTES)
    leaves, streams = rng.random() < 0.1, rng.random() < 0.5
    request = body(prompt, seed, route, streams or leaves)
    if leaves:
        async with http.stream("POST", "/v1/completions", json=request) as answer:
            async for _ in answer.aiter_raw():
                break
        tally.outcomes["left"] += 1
        return
    answer = await http.post("/v1/completions", json=request)
    if answer.status_code == 429:
        tally.outcomes["refused"] += 1
        return
    text = streamed(answer.text) if streams else answer.json()["choices"][0]["text"]
    tally.outcomes[route] += 1
    if text != tally.expected[prompt, seed]:
        tally.faults.append(f"{route} {prompt!r} seed {seed}: {text!r}")


def streamed(events: str) -> str:
    """Return the text of a stream that has to be whole."""
    lines = [line.removeprefix("data: ") for line in events.splitlines() if line]
    if lines[-1] != "[DONE]":
        return "no end: " + events[-200:]
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    ends = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return "".join(choice["text"] for choice in choices) if ends == ["length"] else f"ends: {ends}"


def resident_bytes() -> int:
    """Return the memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


async def clients(url: str, tally: Tally, num_requests: int, concurrency: int) -> None:
    """Send all requests, so many at a time."""
    numbers = iter(range(num_requests))

    async def client(seed: int) -> None:
        rng = random.Random(seed)
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            for number in numbers:
                await ask(http, tally, rng)
                if number % max(1, num_requests // 10) == 0:
                    tally.resident.append(resident_bytes())
                    print(f"{number} requests, {tally.resident[-1] / 1e6:.0f} MB", file=sys.stderr)

    await asyncio.gather(*(client(seed) for seed in range(concurrency)))


async def run(folder: Path, num_requests: int, concurrency: int) -> list[str]:
    """Return what was not as it should be."""
    target = TinyModel("qwen2", is_tied=True).write(folder / "tiny.gguf")
    draft = TinyModel("qwen2", num_layers=1, is_tied=True).write(folder / "draft.gguf")
    settings = load_serve_config(
        flags={
            "target": str(target), "draft": str(draft), "context_length": 256, "kv_memory": "16MiB",
            "calibration": "off", "default_route": "chat", "server": {"port": 0},
            "routes": {
                "chat": {"speculation": "auto"},
                "code": {"speculation": "on", "drafters": ["model"], "draft_length": 3},
                "batch": {"speculation": "off"},
            },
        },
        environ={},
    )  # fmt: skip
    loaded = await asyncio.to_thread(load, settings)
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(loaded, settings, address.set_result, stop))
    url = await address
    expected = {}
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        for prompt in PROMPTS:
            for seed in range(SEEDS):
                answer = await http.post("/v1/completions", json=body(prompt, seed, "batch", stream=False))
                expected[prompt, seed] = answer.json()["choices"][0]["text"]
    tally = Tally(expected)
    await clients(url, tally, num_requests, concurrency)
    stop.set()
    report = await serving
    print(dict(tally.outcomes), file=sys.stderr)
    faults = tally.faults[:10]
    if tally.outcomes.total() != num_requests:
        faults.append(f"{tally.outcomes.total()} outcomes of {num_requests} requests")
    if used := loaded.engine.pool.num_used:
        faults.append(f"{used} KV blocks held at the end")
    if not report.is_clean:
        faults.append("the engine's thread did not end")
    first, last = tally.resident[len(tally.resident) // 5], tally.resident[-1]
    if last > first * (1 + GROWTH):
        faults.append(f"memory grew from {first / 1e6:.0f} to {last / 1e6:.0f} MB")
    return faults


def main() -> None:
    """Run it and say how it went."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=new_event_loop) as runner:
        faults = runner.run(run(Path(folder), options.requests, options.concurrency))
    for fault in faults:
        print(fault)
    print("no answer lost, doubled or wrong; no block left; memory flat" if not faults else "FAILED")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
