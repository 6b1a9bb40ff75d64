"""An engine with the whole of the server in front of it, but for the listening: what a replica holds."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from paceline.config.paths import cache_dir
from paceline.config.server import ServeSettings
from paceline.engine.loading import LoadedEngine
from paceline.ray import endpoints
from paceline.ray.administration import ReplicasAdministration
from paceline.ray.answers import Answerer
from paceline.ray.following import FollowingBook, FollowingConfig
from paceline.ray.link import HubLink
from paceline.runtime import AsyncLLM, RuntimeState
from paceline.server.app import create_app
from paceline.server.serve import load, model_digests
from paceline.server.service import Service


class EngineServer:
    """A loaded engine whose routes are the hub's; `start` first.

    Args:
        loaded: what was loaded.
        settings: what it was loaded with.
        link: the line to the hub, which runs.
    """

    def __init__(self, loaded: LoadedEngine, settings: ServeSettings, link: HubLink) -> None:
        self._link = link
        self._llm = AsyncLLM(loaded, settings.engine, max_queued=settings.server.max_queued)
        book = FollowingBook(settings.engine, self._llm.runtime, link)
        self._follower = FollowingConfig(settings, book, link)
        digests = model_digests(settings.engine, loaded)
        self._service = Service(self._llm, settings, digests, book, self._follower)
        self._answerer = Answerer(self._service)
        app = create_app(self._service, first=(endpoints.router,))
        app.state.link = link
        app.state.administered = ReplicasAdministration(self._service, link)
        self.app: ASGIApp = app
        """OpenAI's API, and the administration of all replicas."""

    @classmethod
    async def load(cls, settings: ServeSettings, link: HubLink) -> EngineServer:
        """Load the models and start.

        Raises:
            PacelineError: the models cannot be had, used, or held.
        """
        server = cls(await asyncio.to_thread(_load_in_turn, settings, link.number), settings, link)
        await server._service.start()
        await link.open(server._follower.take, server._answerer)
        return server

    @property
    def is_well(self) -> bool:
        """Whether it answers requests, or was asked to end."""
        return self._answerer.is_ending or self._llm.runtime.state is not RuntimeState.STOPPED

    async def close(self) -> None:
        """End at once; answers that still run end with an error."""
        await self._llm.runtime.shutdown(0.0)
        self._service.close()


def _load_in_turn(settings: ServeSettings, number: int) -> LoadedEngine:
    """Load the models of the replica of that number; where step costs may have to be measured, one replica of
    this machine at a time, so that they do not disturb one another, and all but the first find them
    measured."""
    if settings.engine.calibration == "off":
        return load(settings, replica=number)
    with _turn():
        return load(settings, replica=number)


@contextmanager
def _turn() -> Iterator[None]:
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "replicas.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
