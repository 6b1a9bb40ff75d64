"""A call's answers as they arrive: of one prompt or of several, what came before a failure first."""

from __future__ import annotations

import asyncio

import pytest

from paceline.administration.access import Caller
from paceline.errors import DeadlineError, PacelineError, StepError
from paceline.policy.routes import RouteOverride
from paceline.records import (
    FinishReason,
    GenerationResult,
    SamplingParams,
    SpeculationStats,
    StreamChunk,
    Timing,
    Usage,
)
from paceline.runtime.stream import AnswerStream, Mailbox
from paceline.server.calls import Answers, Call
from tests.runtime.gated import go

FAULT = StepError("a step", "another", "Go")


def text(said: str) -> StreamChunk:
    return StreamChunk("a", said, (1,))


def end(reason: FinishReason = FinishReason.LENGTH, error: Exception | None = None) -> StreamChunk:
    timing, usage = Timing(0.0, 0.0, 0.0, 0.0, 0), Usage(1, 1)
    result = GenerationResult(
        "a", None, "", (), reason, usage, SpeculationStats(None), timing, seed=1, error=error
    )
    return StreamChunk("a", "", result=result)


class Calling:
    """Answers to as many prompts as wanted, with the mailbox and the end of each."""

    def __init__(self, num_prompts: int, timeout_s: float = 60.0) -> None:
        call = Call("a", Caller(), "chat", [[1]] * num_prompts, SamplingParams(), RouteOverride())
        self.answers = Answers(call, timeout_s)
        self.abandoned: list[int] = []
        self.mailboxes = [Mailbox("a", 1, asyncio.get_running_loop()) for _ in range(num_prompts)]
        for place, mailbox in enumerate(self.mailboxes):
            self.answers.streams.append(
                AnswerStream(mailbox, lambda place=place: self.abandoned.append(place))
            )

    def put(self, place: int, *chunks: StreamChunk) -> None:
        for chunk in chunks:
            self.mailboxes[place].put(chunk)

    async def read(self) -> list[list[tuple[int, str]]]:
        """Return what came, by what came together."""
        found = []
        while arrived := await self.answers.arrived():
            found.append([(place, chunk.text) for place, chunk in arrived])
        return found


def test_chunks_of_one_prompt_that_are_there_come_together() -> None:
    async def main() -> None:
        one = Calling(1)
        one.put(0, text("a"), text("b"), end())
        assert await one.read() == [[(0, "a"), (0, "b"), (0, "")]]
        one.answers.close()
        assert one.abandoned == []

    go(main)


def test_chunks_of_several_prompts_come_together_with_their_places() -> None:
    async def main() -> None:
        several = Calling(3)
        for place in range(3):
            several.put(place, text("a"))
        first = await several.answers.arrived()
        assert sorted((place, chunk.text) for place, chunk in first) == [(0, "a"), (1, "a"), (2, "a")]
        several.put(1, text("b"), end())
        several.put(0, end())
        several.put(2, end())
        rest = [one for together in await several.read() for one in together]
        assert sorted(rest) == [(0, ""), (1, ""), (1, "b"), (2, "")]
        assert len(several.answers.results) == 3

    go(main)


@pytest.mark.parametrize("num_prompts", [1, 2])
@pytest.mark.parametrize("last", [end(FinishReason.ERROR, FAULT), end(FinishReason.ABORT)])
def test_what_came_before_a_failure_is_given_first(num_prompts: int, last: StreamChunk) -> None:
    async def main() -> None:
        some = Calling(num_prompts)
        some.put(0, text("a"), last)
        assert [chunk.text for _, chunk in await some.answers.arrived()] == ["a"]
        with pytest.raises(PacelineError):
            await some.answers.arrived()
        some.answers.close()
        assert some.abandoned == list(range(1, num_prompts))

    go(main)


@pytest.mark.parametrize("num_prompts", [1, 2])
def test_a_failure_that_comes_alone_is_raised_at_once(num_prompts: int) -> None:
    async def main() -> None:
        some = Calling(num_prompts)
        some.put(0, end(FinishReason.ERROR, FAULT))
        with pytest.raises(StepError):
            await some.answers.whole()

    go(main)


@pytest.mark.parametrize("num_prompts", [1, 2])
def test_a_call_that_takes_too_long_gives_what_there_is_and_ends(num_prompts: int) -> None:
    async def main() -> None:
        some = Calling(num_prompts, timeout_s=0.0)
        some.put(0, text("a"))
        assert [chunk.text for _, chunk in await some.answers.arrived()] == ["a"]
        with pytest.raises(DeadlineError):
            await some.answers.arrived()
        some.answers.close()
        assert some.abandoned == list(range(num_prompts))

    go(main)


def test_closing_stops_reading_of_several_prompts() -> None:
    async def main() -> None:
        several, before = Calling(2), asyncio.all_tasks()
        waiting = asyncio.create_task(several.answers.arrived())
        await asyncio.sleep(0)
        waiting.cancel()
        several.answers.close()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0)
        assert sorted(several.abandoned) == [0, 1]
        assert asyncio.all_tasks() == before

    go(main)
