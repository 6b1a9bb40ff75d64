"""A replica's end of the line to the hub."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from paceline.errors import ServingError, ShutDownError
from paceline.ray.records import Letter, Question, SharedRoutes, Topic

log = logging.getLogger(__name__)

AGAIN_AFTER_S = 1.0
"""Pause where the hub does not answer."""


class HubCall(Protocol):
    """The way to the hub; Ray's, or in tests a direct one."""

    async def __call__(self, method: str, *arguments: Any) -> Any:
        """Call a method of `Hub`.

        Raises:
            PacelineError: what the method raised.
            ServingError: the hub does not answer.
        """


class HubLink:
    """Asks for letters until cancelled; `run` does it.

    Args:
        call: the way to the hub.
        key: Ray's name for this replica.
    """

    def __init__(self, call: HubCall, key: str) -> None:
        self._call = call
        self.key = key
        self.number = -1
        """This replica's, once it has joined."""
        self._seen = 0
        self._is_ready = False
        self._routes: asyncio.Future[SharedRoutes] = asyncio.get_running_loop().create_future()
        self._take: Callable[[SharedRoutes], Awaitable[None]] | None = None
        self._answer: Callable[[Question], Awaitable[Any]] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def join(self) -> int:
        """Become a replica that the hub knows, and return its number."""
        self.number = await self._call("join", self.key)
        return self.number

    async def first_routes(self) -> SharedRoutes:
        """Wait for the routes as they are now; `run` has to run."""
        return await self._routes

    async def open(
        self, take: Callable[[SharedRoutes], Awaitable[None]], answer: Callable[[Question], Awaitable[Any]]
    ) -> None:
        """Be ready, and known to be: follow routes and answer questions from now on."""
        self._take, self._answer = take, answer
        self._is_ready = True
        await self._call("ready", self.key, self.number)

    async def run(self) -> None:
        """Ask for letters and do what they say."""
        while True:
            try:
                letter = await self._call("letter", self.key, self.number, self._seen, self._is_ready)
                await self._read(letter)
            except ShutDownError:
                return  # the engine has stopped: nothing is followed any more
            except ServingError as error:
                log.warning("routes stay as they are for now: %s", error)
                await asyncio.sleep(AGAIN_AFTER_S)
            except Exception:
                log.exception("a letter of the hub could not be followed; trying again")
                await asyncio.sleep(AGAIN_AFTER_S)

    async def _read(self, letter: Letter) -> None:
        if letter.routes is not None:
            if self._take is None:
                if self._routes.done():
                    self._routes = asyncio.get_running_loop().create_future()
                self._routes.set_result(letter.routes)
            else:
                await self._take(letter.routes)
            self._seen = letter.routes.version
        for question in letter.questions:
            # Aside, so that a step that takes long holds up no change of routes.
            task = asyncio.create_task(self._reply(question))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _reply(self, question: Question) -> None:
        assert self._answer is not None
        try:
            await self._call("answer", self.key, question.id, await self._answer(question))
        except Exception:
            log.exception("a question about %s could not be answered", question.topic.value)

    async def leave(self) -> None:
        """Say goodbye."""
        self._is_ready = False
        await self._call("leave", self.key)

    async def change(self, name: str, values: Mapping[str, Any], by: str) -> None:
        """Change a route of all replicas; see `Hub.change`."""
        await self._call("change", name, dict(values), by)

    async def reset(self, name: str, by: str) -> None:
        """Reset a route of all replicas; see `Hub.reset`."""
        await self._call("reset", name, by)

    async def reload(self, by: str) -> list[str]:
        """Let the hub read the configuration again; see `Hub.reload`."""
        notes: list[str] = await self._call("reload", by)
        return notes

    async def ask(self, topic: Topic, **detail: Any) -> dict[int, Any]:
        """Ask all replicas, this one too, and return their answers by number."""
        answers: dict[int, Any] = await self._call("ask", topic, detail)
        return answers

    async def counts(self) -> Mapping[str, int]:
        """Return how many replicas there are; see `Hub.counts`."""
        counts: Mapping[str, int] = await self._call("counts")
        return counts
