"""What the server adds to the engine: the same requests over HTTP, as streams on loopback, and without it.

    python benchmarks/server_overhead.py [--rounds 7] [--streams 8] [--tokens 96] [--threads N]

One process holds one engine and a server in front of it. In turns, a round of streams is answered

- over HTTP, for a client in another process, which is a bare socket loop;
- by stepping the engine on its own thread, where the server has nothing to do, and nobody else has;
- the same, while the client's process computes for as long as it did over HTTP, in as many pieces as there
  are steps: on few cores a client takes time from the engine, and that time is no server's.

The server's overhead is the first against the third; the first against the second is what one sees who has
the client on the same machine. CPU time of the client, of the event loop's thread and of all other threads of
the serving process, the engine's, is told apart: it says what the ratio of two noisy speeds cannot."""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from paceline.config.file import load_serve_config
from paceline.engine.engine import Engine
from paceline.engine.loading import LoadedEngine
from paceline.engine.requests import RequestMaker
from paceline.records import SamplingParams, SpeculationParams
from paceline.server.app import create_app
from paceline.server.serve import listen, load, model_digests, new_event_loop, set_aside, uvicorn_config
from paceline.server.service import Service

TARGET = "smollm2-135m-instruct"
NUM_ALONE = 40


def prompts(count: int, turn: int) -> list[str]:
    words = "riders in a line take turns at the front and rest behind one another where the wind is less"
    return [f"Turn {turn}, rider {place}: {words}. " * 2 for place in range(count)]


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# The client's process: one line of JSON in for each round, one out.


def client_main(port: int) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "busy_s" in asked:
            _be_busy(**asked)
            print("{}", flush=True)
            continue
        texts = [[text] for text in asked["prompts"]] if asked["alone"] else [asked["prompts"]]
        cpu, begin = time.process_time(), time.perf_counter()
        ttft = [one for together in texts for one in _read_all(port, asked["tokens"], together)]
        answer = {
            "ttft": ttft,
            "seconds": time.perf_counter() - begin,
            "cpu": time.process_time() - cpu,
        }
        print(json.dumps(answer), flush=True)


def _be_busy(busy_s: float, seconds: float, pieces: int) -> None:
    """Compute for some seconds of CPU time, in pieces that are spread evenly over a longer time."""
    begin, cpu = time.perf_counter(), time.process_time()
    for piece in range(1, pieces + 1):
        time.sleep(max(0.0, begin + seconds * piece / pieces - time.perf_counter()))
        while time.process_time() - cpu < busy_s * piece / pieces:
            pass


def _read_all(port: int, tokens: int, texts: Sequence[str]) -> list[float]:
    """Read streams to their end; returns the seconds until the first token of each."""
    streams = [_Stream(port, tokens, text) for text in texts]
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        num_open = len(streams)
        while num_open:
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fileobj)
                    num_open -= 1
    return [stream.ttft_s for stream in streams]


class _Stream:
    def __init__(self, port: int, tokens: int, text: str) -> None:
        body = json.dumps(
            {
                "model": "m",
                "prompt": text,
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: l\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.ttft_s = 0.0
        self._end = b""
        self._begin = time.perf_counter()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(head.encode() + body)

    def read(self) -> bool:
        """Take what has arrived; returns whether more will come."""
        data = self.socket.recv(1 << 16)
        if not self.ttft_s and b'"text":' in data:
            self.ttft_s = time.perf_counter() - self._begin
        if data:
            self._end = data if len(data) >= 64 else (self._end + data)[-64:]
            return True
        self.socket.close()
        if b"[DONE]" not in self._end or not self.ttft_s:
            raise RuntimeError(f"a stream that ended in {self._end!r}")
        return False


class Client:
    def __init__(self, port: int) -> None:
        command = [sys.executable, __file__, "--client", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# The serving process.


def direct(
    engine: Engine, loaded: LoadedEngine, maker: RequestMaker, texts: Sequence[str], tokens: int
) -> dict[str, Any]:
    """Answer the same requests on the engine's thread, with nobody else there."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    begin = time.perf_counter()
    for text in texts:
        ids = loaded.tokenizer.encode(text, add_special=True)
        engine.submit(maker.make(ids, params, speculation=SpeculationParams(enabled="route"), route="off"))
    ttft = []
    while engine.has_work:
        ttft += [c.result.timing.ttft_s for c in engine.step() if c.result is not None]
    return {"ttft": ttft, "seconds": time.perf_counter() - begin}


async def measure(options: argparse.Namespace) -> None:
    import uvicorn

    flags: dict[str, Any] = {
        "target": TARGET, "context_length": 1024, "kv_memory": "512MiB", "threads": options.threads,
        "max_num_seqs": options.streams, "calibration": "off",
        "routes": {"off": {"speculation": "off"}}, "default_route": "off",
        "server": {"port": 0, "model_name": "m"},
    }  # fmt: skip
    settings = load_serve_config(None, flags, environ={})
    loaded = load(settings)
    from paceline.runtime import AsyncLLM

    llm = AsyncLLM(loaded, settings.engine, max_queued=64)
    service = Service(llm, settings, model_digests(settings.engine, loaded))
    await service.start()
    config = uvicorn_config(create_app(service))
    server, listener = uvicorn.Server(config), listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    set_aside()
    client = Client(listener.getsockname()[1])
    maker = RequestMaker(loaded, settings.engine)

    async def over_http(texts: Sequence[str], tokens: int, alone: bool = False) -> dict[str, Any]:
        return await asyncio.to_thread(client.ask, prompts=texts, tokens=tokens, alone=alone)

    async def without(texts: Sequence[str], tokens: int) -> dict[str, Any]:
        return await llm.runtime.call(lambda engine: direct(engine, loaded, maker, texts, tokens))

    async def beside(texts: Sequence[str], tokens: int) -> dict[str, Any]:
        last = http[-1] if http else {"cpu": 0.0, "seconds": 1.0}
        busy = {"busy_s": last["cpu"], "seconds": last["seconds"], "pieces": tokens}
        busy_client = asyncio.create_task(asyncio.to_thread(client.ask, **busy))
        found = await without(texts, tokens)
        await busy_client
        return found

    async def afresh() -> None:
        await llm.runtime.call(lambda engine: engine.clear_prefix_cache())

    http: list[dict[str, Any]] = []
    plain: list[dict[str, Any]] = []
    shared: list[dict[str, Any]] = []
    ways = [(http, over_http), (plain, without), (shared, beside)]
    for turn in range(-1, options.rounds):
        for found, way in ways[turn % 3 :] + ways[: turn % 3]:
            await afresh()
            loop_cpu, cpu = time.thread_time(), time.process_time()
            one = await way(prompts(options.streams, turn), options.tokens)
            one["loop_cpu"] = time.thread_time() - loop_cpu
            one["engine_cpu"] = time.process_time() - cpu - one["loop_cpu"]
            found.append(one)
    for found in (http, plain, shared):
        del found[0]  # warms up
    await afresh()
    loop_cpu = time.thread_time()
    alone_http = (await over_http(prompts(NUM_ALONE, 100), 1, alone=True))["ttft"]
    request_s = (time.thread_time() - loop_cpu) / NUM_ALONE
    await afresh()
    alone = [(await without([text], 1))["ttft"][0] for text in prompts(NUM_ALONE, 100)]
    client.close()
    server.should_exit = True
    await serving
    await llm.runtime.shutdown(0.0)
    service.close()
    loop_type, http_type = type(asyncio.get_running_loop()), config.http_protocol_class
    print(f"event loop: {loop_type.__module__}, HTTP: {getattr(http_type, '__name__', http_type)}")
    print(f"CPU of the event loop for a request of one token: {1e6 * request_s:.0f} us")
    report(options, http, plain, shared, alone_http, alone)


def report(
    options: argparse.Namespace, http: list[dict[str, Any]], plain: list[dict[str, Any]],
    shared: list[dict[str, Any]], alone_http: list[float], alone: list[float],
) -> None:  # fmt: skip
    total = options.streams * options.tokens
    speeds = [[total / one["seconds"] for one in rounds] for rounds in (http, plain, shared)]
    names = ("over HTTP", "engine alone", "engine beside a busy client")
    for name, found in zip(names, speeds, strict=True):
        print(f"tokens / s, {name}: {statistics.median(found):.1f}")
    for name, base in (("the server", speeds[2]), ("server and client", speeds[1])):
        ratios = sorted(b / a for a, b in zip(speeds[0], base, strict=True))
        spread = ", ".join(f"{100 * (ratio - 1):.1f}" for ratio in ratios)
        print(f"time added by {name}, %: {100 * (statistics.median(ratios) - 1):.2f} (rounds: {spread})")
    token_us = 1e6 / statistics.median(speeds[1])
    for label, key in (("client", "cpu"), ("event loop", "loop_cpu")):
        each_us = 1e6 * statistics.median(one[key] for one in http) / total
        print(f"CPU of the {label}: {each_us:.0f} us a token, {100 * each_us / token_us:.2f} % of its time")
    engine_us = [
        1e6 * statistics.median(one["engine_cpu"] for one in rounds) / total for rounds in (http, plain)
    ]
    print(f"CPU of the engine: {engine_us[0]:.0f} us a token over HTTP, {engine_us[1]:.0f} us without")
    for label, of_http, of_plain in (
        (
            f"{options.streams} at once",
            [t for one in http for t in one["ttft"]],
            [t for one in plain for t in one["ttft"]],
        ),
        ("one at a time", alone_http, alone),
    ):
        for share in (0.5, 0.95):
            a, b = percentile(of_http, share), percentile(of_plain, share)
            name = f"TTFT p{100 * share:.0f}, {label}"
            print(f"{name}: {1e3 * a:.1f} ms over HTTP, {1e3 * b:.1f} ms without, {1e3 * (a - b):+.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        client_main(options.client)
    else:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(measure(options))


if __name__ == "__main__":
    main()
