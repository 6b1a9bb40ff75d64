"""A real server on loopback, for tests: tiny models, uvicorn in a thread, the real client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai

from paceline.config.file import load_serve_config
from paceline.config.server import ServeSettings
from paceline.engine.loading import LoadedEngine
from paceline.runtime import ShutdownReport
from paceline.server.serve import load, new_event_loop, serve
from tests.tiny_models import TinyModel

TOKEN = "admin-token-of-tests"


@dataclass
class Running:
    """A server that runs."""

    settings: ServeSettings
    url: str
    loaded: LoadedEngine
    stop: Any = None
    report: ShutdownReport | None = None

    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What is closed with the server."""

    def http(self, **options: Any) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=30, trust_env=False, **options)
        return self.closing.enter_context(client)

    def client(self, api_key: str = "none", **options: Any) -> openai.OpenAI:
        http = self.http()
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, http_client=http, **options
        )


def write_models(folder: Path) -> dict[str, str]:
    """Write a target, and a draft that agrees with it now and then."""
    target = TinyModel("qwen2", is_tied=True).write(folder / "tiny.gguf")
    draft = TinyModel("qwen2", num_layers=1, is_tied=True).write(folder / "draft.gguf")
    return {"target": str(target), "draft": str(draft)}


def limits() -> dict[str, Any]:
    return {"context_length": 512, "kv_memory": "64MiB", "max_num_seqs": 4, "calibration": "off"}


@contextlib.contextmanager
def running(settings: ServeSettings) -> Iterator[Running]:
    """Serve while the block runs; what the server raises is raised at its end."""
    loaded = load(settings)
    is_ready, state = threading.Event(), Running(settings, "", loaded)
    failures: list[BaseException] = []

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        state.stop = lambda: loop.call_soon_threadsafe(stop.set)

        def on_ready(address: str) -> None:
            state.url = address
            is_ready.set()

        state.report = await serve(loaded, settings, on_ready, stop)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(main())
        except BaseException as error:
            failures.append(error)
        finally:
            is_ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    is_ready.wait()
    try:
        if not failures:
            with state.closing:
                yield state
    finally:
        if state.stop is not None and not failures:
            state.stop()
        thread.join()
        if failures:
            raise failures[0]


def settings_of(path: Path | None = None, **values: Any) -> ServeSettings:
    """Return settings with a free port."""
    server = {"port": 0, "admin_token": TOKEN, **values.pop("server", {})}
    return load_serve_config(path, {**values, "server": server}, environ={})
