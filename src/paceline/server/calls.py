"""One call while it is answered: its streams, its turn and its time, let go of together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from paceline.errors import DeadlineError, PacelineError, StepError
from paceline.policy.routes import RouteOverride
from paceline.records import FinishReason, GenerationResult, SamplingParams, StreamChunk
from paceline.runtime import AnswerStream
from paceline.server.access import Caller


@dataclass(frozen=True, slots=True)
class Call:
    """One request, understood: what is left is to answer it."""

    id: str
    caller: Caller
    route: str
    prompts: Sequence[Sequence[int]]
    sampling: SamplingParams
    override: RouteOverride
    sources: Sequence[Mapping[str, Any] | None] = ()
    """What each prompt was, where the call is to be captured."""


class Answers:
    """The answers to one call while they come: one stream for each prompt, n choices in each.

    Closing aborts what has not ended, and lets the caller's next request have its turn.
    """

    def __init__(self, call: Call, timeout_s: float) -> None:
        self.call = call
        self.streams: list[AnswerStream] = []
        self.results: list[GenerationResult] = []
        """Those that have ended, in the order in which they did."""
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._has_turn = False

    async def take_turn(self) -> None:
        """Wait for the caller's turn."""
        await self.call.caller.take_turn()
        self._has_turn = True

    def deadline(self) -> _Deadline:
        """Return a context, for what comes before the chunks, that ends with a `DeadlineError` in time."""
        return _Deadline(self._ends_at, self._timeout_s)

    async def chunks(self) -> AsyncIterator[tuple[int, StreamChunk]]:
        """Yield (index of the prompt, chunk) as they come.

        Raises:
            PacelineError: an answer failed; the others end with it.
            DeadlineError: the call's time is over.
        """
        # One timer that ends the streams: a timeout around each chunk would cost more than the chunk itself.
        self._timer = self._loop.call_at(self._ends_at, self._end_late)
        if len(self.streams) == 1:
            async for chunk in self.streams[0]:
                yield 0, self._noted(chunk)
        else:
            async for index, chunk in _merged(self.streams):
                yield index, self._noted(chunk)

    def _end_late(self) -> None:
        error = _late(self._timeout_s)
        for stream in self.streams:
            stream.fail(error)

    def _noted(self, chunk: StreamChunk) -> StreamChunk:
        if chunk.result is not None:
            self.results.append(chunk.result)
            if chunk.result.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                raise _as_ours(chunk.result.error)
        return chunk

    async def whole(self) -> list[GenerationResult]:
        """Wait for all answers and return them, ordered by prompt and choice."""
        found: list[tuple[int, GenerationResult]] = []
        async for index, chunk in self.chunks():
            if chunk.result is not None:
                found.append((index, chunk.result))
        return [result for _, result in sorted(found, key=lambda one: (one[0], one[1].index))]

    def of_prompt(self, index: int) -> list[GenerationResult]:
        """Return the answers to one prompt that have ended."""
        request_id = self.streams[index].request_id
        return [result for result in self.results if result.id == request_id]

    def close(self) -> None:
        """Abort what still runs. Safe any number of times."""
        if self._timer is not None:
            self._timer.cancel()
        for stream in self.streams:
            stream.close()
        if self._has_turn:
            self._has_turn = False
            self.call.caller.end_turn()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class _Deadline:
    """`asyncio.timeout_at` with an error of ours."""

    def __init__(self, ends_at: float, timeout_s: float) -> None:
        self._timeout = asyncio.timeout_at(ends_at)
        self._timeout_s = timeout_s

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise _late(self._timeout_s) from None


def _late(timeout_s: float) -> DeadlineError:
    return DeadlineError(
        given=f"a request that took longer than {timeout_s:g} s",
        expected="an answer by then",
        remedy="Ask for fewer tokens, or raise server.request_timeout_s",
    )


async def _merged(streams: Sequence[AnswerStream]) -> AsyncIterator[tuple[int, StreamChunk]]:
    """Yield the chunks of several streams as they come; the first error ends it."""
    arrived: asyncio.Queue[tuple[int, StreamChunk | BaseException | None]] = asyncio.Queue()

    async def read(index: int, stream: AnswerStream) -> None:
        try:
            async for chunk in stream:
                arrived.put_nowait((index, chunk))
        except Exception as error:
            arrived.put_nowait((index, error))
        else:
            arrived.put_nowait((index, None))

    tasks = [asyncio.create_task(read(index, stream)) for index, stream in enumerate(streams)]
    try:
        num_running = len(tasks)
        while num_running:
            index, found = await arrived.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                num_running -= 1
            else:
                yield index, found
    finally:
        for task in tasks:
            task.cancel()


def new_id(prefix: str) -> str:
    """Return an id for an answer, as OpenAI's are."""
    return f"{prefix}-{uuid.uuid4().hex}"


def _as_ours(error: Exception | None) -> PacelineError:
    if isinstance(error, PacelineError):
        return error
    ours = StepError(
        given="an answer that did not come to its end",
        expected="tokens up to a stop or a limit",
        remedy="Send the request again; the server's log has the cause",
    )
    ours.__cause__ = error
    return ours
