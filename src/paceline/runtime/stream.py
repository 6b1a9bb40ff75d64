"""One answer as an async iterator. Letting go of it, in whatever way, aborts its request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from paceline.errors import PacelineError
from paceline.records import GenerationResult, StreamChunk


class Mailbox:
    """What has arrived for one request and was not read yet. Lives on the event loop's thread."""

    def __init__(self, request_id: str, num_choices: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop  # to ask for the running one costs a system call
        self.request_id = request_id
        self.num_running = num_choices
        """Choices whose last chunk has not arrived."""
        self.error: PacelineError | None = None
        """Why no further chunk will arrive."""
        self._chunks: deque[StreamChunk] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, chunk: StreamChunk) -> None:
        """Take a chunk in."""
        self._chunks.append(chunk)
        self.num_running -= chunk.is_last
        self._wake()

    def fail(self, error: PacelineError) -> None:
        """Let whoever reads know that nothing more will come."""
        self.error = error
        self._wake()

    def take(self) -> StreamChunk | None:
        """Return the next of the chunks that have arrived; none after the last."""
        return self._chunks.popleft() if self._chunks else None

    def take_all(self) -> list[StreamChunk]:
        """Return the chunks that have arrived; empty after the last."""
        chunks = list(self._chunks)
        self._chunks.clear()
        return chunks

    def waiter(self) -> asyncio.Future[None] | None:
        """Return what is done when something arrives; none where there is something, or nothing will be.

        Raises:
            PacelineError: nothing more will come, though choices are unfinished.
        """
        if self._chunks or not self.num_running:
            return None
        if self.error is not None:
            raise self.error
        if self._waiter is not None and not self._waiter.done():
            raise RuntimeError(f"two readers of the stream of {self.request_id!r}; one was expected")
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AnswerStream:
    """The chunks of one request, in order; with n > 1 those of its choices interleaved.

    It ends after the last chunk of each choice. Closing it before that, leaving `async with`, cancelling the
    task that reads it, or dropping it aborts the request; its blocks are free before the engine's next step.
    """

    def __init__(self, mailbox: Mailbox, abandon: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self._abandon: Callable[[], None] | None = abandon

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._mailbox.request_id

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> StreamChunk:
        """Return the next chunk.

        Raises:
            StopAsyncIteration: the answer is complete, or the stream was closed.
            ServingError: the engine will not go on with it. What ends one choice alone is in its result.
        """
        if self._abandon is None:
            raise StopAsyncIteration
        await self._arrival()
        chunk = self._mailbox.take()
        if chunk is None:
            self._abandon = None
            raise StopAsyncIteration
        return chunk

    async def arrived(self) -> list[StreamChunk]:
        """Return the chunks that have arrived, waiting for the first; empty where iteration would stop.

        Raises:
            ServingError: as iteration does.
        """
        if self._abandon is None:
            return []
        await self._arrival()
        chunks = self._mailbox.take_all()
        if not chunks:
            self._abandon = None
        return chunks

    async def _arrival(self) -> None:
        """Wait until there is a chunk, or will be none."""
        try:
            while (waiter := self._mailbox.waiter()) is not None:
                await waiter
        except BaseException:  # cancelled: whoever read it is gone
            self.close()
            raise

    async def results(self) -> tuple[GenerationResult, ...]:
        """Read to the end and return each choice's answer, in their order."""
        found = [chunk.result async for chunk in self if chunk.result is not None]
        return tuple(sorted(found, key=lambda result: result.index))

    def fail(self, error: PacelineError) -> None:
        """Raise an error to whoever reads, which aborts a request that has not ended. On the event loop.

        Chunks that have arrived are read before it.
        """
        self._mailbox.fail(error)

    def close(self) -> None:
        """Abort the request if it has not ended. Safe in any thread, and any number of times."""
        abandon, self._abandon = self._abandon, None
        if abandon is not None and self._mailbox.num_running:
            abandon()

    async def aclose(self) -> None:
        """Close, as async generators do."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close: nobody can read it any more."""
        self.close()
