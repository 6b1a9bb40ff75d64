"""A stream read by all that has arrived: the same chunks, the same ends."""

from __future__ import annotations

import asyncio

import pytest

from paceline.errors import StepError
from paceline.records import StreamChunk
from paceline.runtime.stream import AnswerStream, Mailbox
from tests.runtime.gated import go


def chunk(text: str) -> StreamChunk:
    return StreamChunk("a", text)


class Reading:
    """A mailbox with its stream, and how often the request was let go of."""

    def __init__(self) -> None:
        self.mailbox = Mailbox("a", 1, asyncio.get_running_loop())
        self.num_abandoned = 0
        self.stream = AnswerStream(self.mailbox, self._abandon)

    def _abandon(self) -> None:
        self.num_abandoned += 1


def test_what_came_together_is_read_together_and_the_end_is_empty() -> None:
    async def main() -> None:
        reading = Reading()
        waiting = asyncio.create_task(reading.stream.arrived())
        await asyncio.sleep(0)
        assert not waiting.done()
        reading.mailbox.put(chunk("one"))
        reading.mailbox.put(chunk("two"))
        assert [one.text for one in await waiting] == ["one", "two"]
        reading.mailbox.put(chunk("three"))
        reading.mailbox.num_running = 0  # that was the last
        assert [one.text for one in await reading.stream.arrived()] == ["three"]
        assert await reading.stream.arrived() == []
        assert await reading.stream.arrived() == []
        assert reading.num_abandoned == 0

    go(main)


def test_what_came_before_an_error_is_read_before_it() -> None:
    error = StepError("a step", "another", "Go")

    async def main() -> None:
        reading = Reading()
        reading.mailbox.put(chunk("one"))
        reading.stream.fail(error)
        assert [one.text for one in await reading.stream.arrived()] == ["one"]
        with pytest.raises(StepError):
            await reading.stream.arrived()
        assert reading.num_abandoned == 1

    go(main)


def test_a_cancelled_reader_lets_go_of_the_request() -> None:
    async def main() -> None:
        reading = Reading()
        waiting = asyncio.create_task(reading.stream.arrived())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert reading.num_abandoned == 1
        assert await reading.stream.arrived() == []

    go(main)


def test_a_second_reader_at_a_time_is_refused() -> None:
    async def main() -> None:
        reading = Reading()
        waiting = asyncio.create_task(reading.stream.arrived())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="two readers"):
            await reading.stream.arrived()
        waiting.cancel()

    go(main)
