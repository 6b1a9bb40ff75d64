"""Which chunk belongs to whom: open requests as the event loop sees them, and as the engine's thread does.

The loop's side needs no lock because only the loop's thread uses it, and the engine's side because only the
engine's thread does. `on_loop` and `EngineThread.post` are the two ways across.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.engine.engine import Engine
from paceline.engine.sequence import Sequence as EngineSequence
from paceline.errors import InvalidParameterError, PacelineError
from paceline.records import Request, StreamChunk
from paceline.runtime.engine_thread import Command
from paceline.runtime.places import Places
from paceline.runtime.stream import Mailbox


@dataclass(slots=True)
class _Running:
    """A request as the engine's thread sees it."""

    ticket: int
    num_choices: int


class Switchboard:
    """Open requests, each with a ticket of its own.

    An id may be used again once its request was let go of, while chunks of that one are still on their way; a
    ticket never is.

    Args:
        places: counts the sequences of open requests.
        post: hands a command to the engine's thread.
    """

    def __init__(self, places: Places, post: Callable[[Command], None]) -> None:
        self._places = places
        self._post = post
        self._tickets = itertools.count()
        self._open: dict[int, Mailbox] = {}
        self._ids: dict[str, int] = {}
        self._running: dict[str, _Running] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_empty = asyncio.Event()
        """Set while no request is open."""
        self.is_empty.set()

    def start(self) -> None:
        """Belong to the running event loop."""
        self._loop = asyncio.get_running_loop()

    # In any thread.

    def on_loop(self, function: Callable[..., None], *arguments: object) -> bool:
        """Run a function on the event loop soon; returns whether there still is one."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # it was closed, and nobody waits for anything any more
            return False
        return self._loop is not None

    def abandon(self, ticket: int, request_id: str) -> None:
        """End a request that nobody reads any more, and say nothing more of it."""

        def command(engine: Engine) -> None:
            running = self._running.get(request_id)
            if running is not None and running.ticket == ticket:
                del self._running[request_id]
                engine.abort(request_id, is_reported=False)

        self._post(command)
        self.on_loop(self.forget, ticket)

    # On the event loop.

    @property
    def request_ids(self) -> list[str]:
        """Ids of open requests."""
        return list(self._ids)

    def open(self, request: Request) -> tuple[int, Mailbox]:
        """Take a request in and return its ticket and its mailbox.

        Raises:
            InvalidParameterError: an open request has its id.
            BusyError: there is no place for it.
        """
        if request.id in self._ids:
            raise InvalidParameterError(
                given=f"request id {request.id!r}, which is still running",
                expected="an id that no unfinished request has",
                remedy="Choose another id",
            )
        self._places.take(request.sampling.n)
        ticket = next(self._tickets)
        mailbox = Mailbox(request.id, request.sampling.n, asyncio.get_running_loop())
        self._open[ticket], self._ids[request.id] = mailbox, ticket
        self.is_empty.clear()
        return ticket, mailbox

    def forget(self, ticket: int) -> None:
        """Let go of a request; one that is not open is ignored."""
        mailbox = self._open.pop(ticket, None)
        if mailbox is None:
            return
        del self._ids[mailbox.request_id]
        self._places.give_back(mailbox.num_running)
        if not self._open:
            self.is_empty.set()

    def fail(self, ticket: int, error: PacelineError) -> None:
        """End a stream with an error, whatever the engine does with its request."""
        if ticket in self._open:
            self._open[ticket].fail(error)
            self.forget(ticket)

    def fail_all(self, error: PacelineError) -> None:
        """End every stream with an error, and abort what the engine still has of them."""
        for ticket, mailbox in list(self._open.items()):
            self.fail(ticket, error)
            self.abandon(ticket, mailbox.request_id)

    def _put_all(self, addressed: Sequence[tuple[int, StreamChunk]]) -> None:
        for ticket, chunk in addressed:
            mailbox = self._open.get(ticket)
            if mailbox is None:
                continue
            mailbox.put(chunk)
            if chunk.is_last:
                self._places.give_back(1, has_finished=True)
            if not mailbox.num_running:
                self.forget(ticket)

    # On the engine's thread.

    def add(self, engine: Engine, ticket: int, sequences: Sequence[EngineSequence]) -> None:
        """Queue the choices of one request in the engine."""
        request = sequences[0].request
        try:
            engine.add(sequences)
        except PacelineError as error:
            self.on_loop(self.fail, ticket, error)
        else:
            self._running[request.id] = _Running(ticket, len(sequences))

    def deliver(self, engine: Engine, chunks: Sequence[StreamChunk]) -> None:
        """Send chunks to their streams; without an event loop there is nobody to serve any more."""
        addressed = []
        for chunk in chunks:
            running = self._running.get(chunk.request_id)
            if running is None:
                continue
            addressed.append((running.ticket, chunk))
            running.num_choices -= chunk.is_last
            if not running.num_choices:
                del self._running[chunk.request_id]
        if addressed and not self.on_loop(self._put_all, addressed):
            for request_id in list(self._running):
                del self._running[request_id]
                engine.abort(request_id, is_reported=False)
