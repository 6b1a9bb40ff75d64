"""Runs the application: loads, listens, and goes without losing an answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

import uvicorn
from starlette.types import ASGIApp
from uvicorn.loops.auto import auto_loop_factory

from paceline.config.drafter_names import role_of
from paceline.config.engine import EngineSettings
from paceline.config.server import ServeSettings
from paceline.engine.calibration import file_digest
from paceline.engine.loading import LoadedEngine, load_engine
from paceline.models.download import resolve
from paceline.runtime import AsyncLLM, ShutdownReport
from paceline.server.app import create_app
from paceline.server.service import Service
from paceline.server.sse import DirectSend

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE_S = 10
"""Seconds for responses to be written, after their answers have ended."""

Progress = Callable[[float, str], None]


def load(
    settings: ServeSettings,
    on_progress: Progress = lambda share, text: None,
    *,
    replica: int | None = None,
) -> LoadedEngine:
    """Load the models of a server; see `load_engine`."""
    return load_engine(settings.engine, on_progress, replica=replica)


async def serve(
    loaded: LoadedEngine,
    settings: ServeSettings,
    on_ready: Callable[[str], None] = lambda address: None,
    stop: asyncio.Event | None = None,
) -> ShutdownReport:
    """Serve until a signal (SIGTERM, SIGINT) or the event; then finish what runs, as far as there is time.

    Args:
        loaded: what `load` returned.
        settings: what it was loaded with.
        on_ready: told the address once it listens.
        stop: ends it, where no signal can.

    Raises:
        OSError: the port is taken.
    """
    server = settings.server
    llm = AsyncLLM(loaded, settings.engine, max_queued=server.max_queued)
    service = Service(llm, settings, model_digests(settings.engine, loaded))
    listener = listen(server.host, server.port)
    await service.start()
    runner = _Server(uvicorn_config(create_app(service)), llm, server.shutdown_timeout_s)
    try:
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(_stop_at(stop, runner))] if stop is not None else []
            watching.append(tasks.create_task(_tell(runner, on_ready, listener)))
            watching.append(tasks.create_task(service.follower.run()))
            await runner.serve([listener])
            for task in watching:
                task.cancel()
    finally:
        report = runner.report or await llm.runtime.shutdown(0.0)
        listener.close()
        service.close()
    return report


def model_digests(engine: EngineSettings, loaded: LoadedEngine) -> Mapping[str, tuple[str, str]]:
    """Return (name, digest) of the models that are loaded, by role."""
    found = {"target": (loaded.target_name, file_digest(resolve(engine.target)))}
    for drafter, name in loaded.draft_names.items():
        found[role_of(drafter)] = (name, file_digest(resolve(engine.draft_models[drafter])))
    return found


class _Server(uvicorn.Server):
    """Uvicorn, with answers that still run at the deadline ended in words, and not by a cut connection."""

    def __init__(self, config: uvicorn.Config, llm: AsyncLLM, timeout_s: float) -> None:
        super().__init__(config)
        self._llm = llm
        self._timeout_s = timeout_s
        self.report: ShutdownReport | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT begin a shutdown, and leave it at that: uvicorn would raise them again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, finish those there are, and close.

        It listens until answers have ended, so that who comes meanwhile is told to go elsewhere.
        """
        self.report = await self._llm.runtime.shutdown(self._timeout_s)
        await super().shutdown(sockets)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop, which the extra `server` brings, or asyncio's where there is no uvloop."""
    return auto_loop_factory()()


def set_aside() -> None:
    """Spare the garbage collector what is there now, which is to stay until the process ends.

    A full collection goes through every object of models and libraries, 0.2 million with a small model, and
    takes half a second on a slow machine. All answers wait for it.
    """
    gc.collect()
    gc.freeze()


def uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    """Return how the application is served: by httptools, without a log of requests."""
    return uvicorn.Config(
        DirectSend(app),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol by name: for other sockets asyncio leaves Nagle's algorithm on, and a response that is
    # written in two pieces then waits 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


async def _tell(runner: uvicorn.Server, on_ready: Callable[[str], None], listener: socket.socket) -> None:
    while not runner.started:
        await asyncio.sleep(0.01)
    host, port = listener.getsockname()[:2]
    on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")


async def _stop_at(stop: asyncio.Event, runner: uvicorn.Server) -> None:
    await stop.wait()
    runner.should_exit = True
