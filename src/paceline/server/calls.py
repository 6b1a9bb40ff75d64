"""One call while it is answered: its streams, its turn and its time, let go of together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from paceline.administration.access import Caller
from paceline.errors import DeadlineError, PacelineError, StepError
from paceline.policy.routes import RouteOverride
from paceline.records import FinishReason, GenerationResult, SamplingParams, StreamChunk
from paceline.runtime import AnswerStream


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
        self._merged: _Merged | None = None
        self._error: PacelineError | None = None
        self._has_turn = False

    async def take_turn(self) -> None:
        """Wait for the caller's turn."""
        await self.call.caller.take_turn()
        self._has_turn = True

    def deadline(self) -> _Deadline:
        """Return a context, for what comes before the chunks, that ends with a `DeadlineError` in time."""
        return _Deadline(self._ends_at, self._timeout_s)

    async def arrived(self) -> list[tuple[int, StreamChunk]]:
        """Return (index of the prompt, chunk) of what has arrived, waiting for some; empty after the last.

        Raises:
            PacelineError: an answer failed; the others end with it.
            DeadlineError: the call's time is over.
        """
        if self._error is not None:
            raise self._error
        if self._timer is None:
            # One that ends the streams: a timeout around each chunk would cost more than the chunk itself.
            self._timer = self._loop.call_at(self._ends_at, self._end_late)
        if len(self.streams) == 1:
            found = [(0, chunk) for chunk in await self.streams[0].arrived()]
        else:
            if self._merged is None:
                self._merged = _Merged(self.streams)
            found = await self._merged.arrived()
        for num_good, (_, chunk) in enumerate(found):
            if chunk.result is not None and not self._notes(chunk.result):
                return found[:num_good] or await self.arrived()
        return found

    def _end_late(self) -> None:
        error = _late(self._timeout_s)
        for stream in self.streams:
            stream.fail(error)

    def _notes(self, result: GenerationResult) -> bool:
        """Keep a result; returns whether it is an answer, and else keeps its error for the next call."""
        self.results.append(result)
        if result.finish_reason not in (FinishReason.ERROR, FinishReason.ABORT):
            return True
        self._error = _as_ours(result.error)
        return False

    async def whole(self) -> list[GenerationResult]:
        """Wait for all answers and return them, ordered by prompt and choice."""
        found: list[tuple[int, GenerationResult]] = []
        while arrived := await self.arrived():
            found += [(index, chunk.result) for index, chunk in arrived if chunk.result is not None]
        return [result for _, result in sorted(found, key=lambda one: (one[0], one[1].index))]

    def of_prompt(self, index: int) -> list[GenerationResult]:
        """Return the answers to one prompt that have ended."""
        request_id = self.streams[index].request_id
        return [result for result in self.results if result.id == request_id]

    def close(self) -> None:
        """Abort what still runs. Safe any number of times."""
        if self._timer is not None:
            self._timer.cancel()
        if self._merged is not None:
            self._merged.close()
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


class _Merged:
    """The chunks of several streams as they come."""

    def __init__(self, streams: Sequence[AnswerStream]) -> None:
        self._arrived: asyncio.Queue[tuple[int, list[StreamChunk] | Exception]] = asyncio.Queue()
        self._num_running = len(streams)
        self._error: Exception | None = None
        self._tasks = [asyncio.create_task(self._read(index, stream)) for index, stream in enumerate(streams)]

    async def _read(self, index: int, stream: AnswerStream) -> None:
        try:
            while chunks := await stream.arrived():
                self._arrived.put_nowait((index, chunks))
        except Exception as error:
            self._arrived.put_nowait((index, error))
        else:
            self._arrived.put_nowait((index, []))

    async def arrived(self) -> list[tuple[int, StreamChunk]]:
        """Return (index of the stream, chunk), waiting for some; empty after the last.

        Raises:
            Exception: that of the first stream that failed.
        """
        found: list[tuple[int, StreamChunk]] = []
        while self._error is None and self._num_running and not (found and self._arrived.empty()):
            index, chunks = await self._arrived.get()
            if isinstance(chunks, Exception):
                self._error = chunks
            else:
                self._num_running -= not chunks
                found += [(index, chunk) for chunk in chunks]
        if self._error is not None and not found:
            raise self._error
        return found

    def close(self) -> None:
        """Read no more."""
        for task in self._tasks:
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
