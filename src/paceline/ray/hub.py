"""The hub: one actor that owns the routes of all replicas, and through which any of them asks the others.

Replicas ask it for letters, again and again, and it holds each such call until it has something to say. So
nobody has to know where replicas are, a new one is told what an old one was, and one that is gone is missed
within seconds. Everything here is plain asyncio; Ray only carries the calls.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from paceline.administration.overlay import OverlayStore
from paceline.administration.reload import ConfigFollower
from paceline.clock import monotonic
from paceline.config.server import ServeSettings
from paceline.errors import PacelineError
from paceline.ray.members import GONE_AFTER_S, Member, Members
from paceline.ray.records import Letter, Question, Topic
from paceline.ray.shared_book import SharedBook

log = logging.getLogger(__name__)

HOLD_S = 2.0
"""How long a call for a letter is held where there is nothing to say."""
SETTLED_AFTER_S = 2 * HOLD_S
ANSWER_WITHIN_S = GONE_AFTER_S + 2
"""By then a replica has answered, or counts as gone."""


class Hub:
    """Keeps the routes; call `start` first.

    Args:
        settings: as they were read; its file is followed and its database written here alone.
        num_replicas: how many there should be.
    """

    def __init__(self, settings: ServeSettings, num_replicas: int) -> None:
        self._members = Members(num_replicas)
        self._turned = asyncio.Event()
        """Set, and replaced, at whatever somebody may wait for."""
        self._store = OverlayStore(settings.state_path)
        self._book = SharedBook(settings.engine, self._store, self._turn)
        self._follower = ConfigFollower(settings, self._book)
        self._told_error: str | None = None
        self._started_at = monotonic()
        self._questions: dict[int, Question] = {}
        self._answers: dict[int, dict[int, Any]] = {}
        self._ids = itertools.count()
        self._has_file = settings.read_again is not None
        self._starting = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take up what was changed before the last end, and follow the file from now on. Safe to repeat."""
        async with self._starting:
            if self._following is not None:
                return
            await self._book.start()
            if self._has_file:
                # Ray starts a hub again with the settings of the first, and the file may have changed since.
                with suppress(PacelineError):  # it is in `error` of the follower then
                    await self._follower.reload()
            self._following = asyncio.create_task(self._follower.run())

    async def close(self) -> None:
        """Let go of the files."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        self._store.close()

    # Of replicas.

    async def join(self, key: str) -> int:
        """Return the number of a new replica: the one of a replica that is gone, as soon as that is known."""
        await self.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(GONE_AFTER_S + 1):
                while not self._members.can_join():
                    await asyncio.sleep(0.2)
        return self._members.join(key).number

    async def letter(self, key: str, number: int, seen: int, is_ready: bool) -> Letter:
        """Return what there is for a replica, as soon as there is something, or after two seconds.

        Args:
            key, number: who asks.
            seen: version of the routes that it has put in force.
            is_ready: whether it answers requests, and questions.
        """
        await self.start()
        member = self._members.join(key, number)
        if (member.seen, member.is_ready) != (seen, is_ready):
            member.seen, member.is_ready = seen, is_ready
            self._turn()
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                while (letter := self._letter(member)) is None:
                    await self._turned.wait()
                return letter
        return Letter(None)

    def _letter(self, member: Member) -> Letter | None:
        error = self._follower.error
        if error != self._told_error:
            self._told_error = error
            self._book.touch()
        state = self._book.state(error)
        routes = state if state.version != member.seen else None
        questions: tuple[Question, ...] = ()
        if member.is_ready:
            questions = tuple(
                question for id_, question in self._questions.items() if id_ not in member.unanswered
            )
        member.unanswered.update(question.id for question in questions)
        return Letter(routes, questions) if routes or questions else None

    async def ready(self, key: str, number: int) -> None:
        """Count a replica, before its next call for a letter, among those that answer."""
        self._members.join(key, number).is_ready = True
        self._turn()

    async def answer(self, key: str, question_id: int, value: Any) -> None:
        """Take a replica's answer to a question."""
        member = next((one for one in self._members if one.key == key), None)
        if member is not None and question_id in self._answers:
            self._answers[question_id][member.number] = value
            self._turn()

    async def leave(self, key: str) -> None:
        """Say goodbye to a replica that stops."""
        self._members.leave(key)
        self._turn()

    # Of whoever administrates, through a replica.

    async def change(self, name: str, values: Mapping[str, Any], by: str) -> None:
        """Change a route everywhere; see `RouteBook.change`. Ends when every replica follows."""
        await self._book.change(name, values, by)
        await self._all_follow()

    async def reset(self, name: str, by: str) -> None:
        """Reset a route everywhere; see `RouteBook.reset`. Ends when every replica follows."""
        await self._book.reset(name, by)
        await self._all_follow()

    async def reload(self, by: str) -> list[str]:
        """Read the file again; see `ConfigFollower.reload`. Ends when every replica follows."""
        notes = await self._follower.reload(by)
        await self._all_follow()
        return notes

    async def _all_follow(self) -> None:
        """Wait until each replica that is ready has the routes of now, or is gone."""
        version = self._book.state(None).version
        await self._until(
            lambda: self._is_settled() and all(one.seen >= version for one in self._members if one.is_ready)
        )

    async def end(self, within_s: float) -> dict[int, Any]:
        """Let every replica take no more requests and finish those it has; returns how many it
        finished, and how many not, of each."""
        return await self.ask(Topic.END, {"within_s": within_s}, within_s + ANSWER_WITHIN_S)

    async def ask(
        self, topic: Topic, detail: Mapping[str, Any], within_s: float = ANSWER_WITHIN_S
    ) -> dict[int, Any]:
        """Ask every replica, and return answers by number; those that are gone have none."""
        id_ = next(self._ids)
        self._questions[id_], self._answers[id_] = Question(id_, topic, detail), {}
        self._turn()
        try:
            await self._until(
                lambda: self._is_settled() and self._ready() <= self._answers[id_].keys(), within_s
            )
            return dict(sorted(self._answers[id_].items()))
        finally:
            del self._questions[id_], self._answers[id_]
            for member in self._members:
                member.unanswered.discard(id_)

    async def counts(self) -> Mapping[str, int]:
        """Return how many replicas are ready, load, and were lost since the hub started."""
        members = list(self._members)
        num_ready = sum(member.is_ready for member in members)
        return {"ready": num_ready, "loading": len(members) - num_ready, "lost": self._members.num_lost}

    def _is_settled(self) -> bool:
        """Whether replicas that an earlier hub knew have had the time to come."""
        return self._members.are_complete() or monotonic() - self._started_at > SETTLED_AFTER_S

    def _ready(self) -> set[int]:
        return {member.number for member in self._members if member.is_ready}

    async def _until(self, is_so: Callable[[], bool], within_s: float = ANSWER_WITHIN_S) -> None:
        """Wait for something that becomes so at the latest when silent replicas count as gone."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not is_so():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.5):
                            await self._turned.wait()
                return
        log.warning("a replica did not answer in %g s; it will, or will be replaced", within_s)

    def _turn(self) -> None:
        event, self._turned = self._turned, asyncio.Event()
        event.set()
