"""Many streams over one engine thread: each answer is that of plain decoding, whoever comes and goes."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.engine import Engine
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import BusyError, EmptyPromptError, InvalidParameterError, ShutDownError
from paceline.parameters import StructuredOutput
from paceline.records import FinishReason, GenerationResult, Request, SamplingParams, StreamChunk
from paceline.runtime import AnswerStream, Runtime, RuntimeState
from tests.engine.scripted import OFF, make_engine, outcome, request, run, speculate
from tests.engine.test_faults import Recorder
from tests.runtime.gated import LOGITS, Gate, V, gated_engine, go

PARAMS = SamplingParams(max_tokens=20)
LONG = SamplingParams(max_tokens=1000)


def engine(**more: Any) -> Engine:
    return make_engine(LOGITS, V, {"suffix": SuffixDrafter(1)}, **more)


def plain(asked: Request) -> tuple[Any, ...]:
    (result,) = run(make_engine(LOGITS, V), request(asked.prompt_token_ids, asked.sampling, seed=asked.seed))
    return outcome(result)


def named(name: str, *prompt: int, params: SamplingParams = PARAMS, k: int = 0, seed: int = 0) -> Request:
    speculation = speculate(k, "suffix") if k else OFF
    return request(prompt or (1,), params, speculation, request_id=name, seed=seed)


def test_every_stream_gets_its_own_answer() -> None:
    async def main() -> None:
        one = engine(num_blocks=30, limits=SchedulerLimits(max_num_seqs=4, prefill_chunk=8))
        params = SamplingParams(max_tokens=15, temperature=0.9)
        asked = [named(f"r{i}", *range(i + 1), params=params, k=i % 4, seed=i) for i in range(20)]

        async def read(wanted: Request) -> tuple[list[StreamChunk], Request]:
            stream = await runtime.submit(wanted)
            assert stream.request_id == wanted.id
            return [chunk async for chunk in stream], wanted

        async with Runtime(one) as runtime:
            for chunks, wanted in await asyncio.gather(*map(read, asked)):
                result = chunks[-1].result
                assert result is not None
                assert outcome(result) == plain(wanted)
                assert "".join(c.text for c in chunks) == result.text
                assert tuple(i for c in chunks for i in c.token_ids) == result.token_ids
            assert (runtime.num_open, runtime.num_open_sequences) == (0, 0)
            assert await runtime.call(lambda e: e.pool.num_used) == 0
        assert runtime.state is RuntimeState.STOPPED

    go(main)


def test_choices_come_interleaved_and_results_in_order() -> None:
    async def main() -> None:
        params = SamplingParams(max_tokens=9, temperature=1.0, n=3)
        async with Runtime(engine()) as runtime:
            results = await (await runtime.submit(named("r", params=params, seed=5))).results()
        assert [r.index for r in results] == [0, 1, 2]
        assert len({r.token_ids for r in results}) == 3

    go(main)


async def aclose(stream: AnswerStream) -> None:
    await stream.aclose()


async def leave(stream: AnswerStream) -> None:
    async with stream:
        pass


async def cancel_reader(stream: AnswerStream) -> None:
    task = asyncio.create_task(stream.__anext__())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    while task.done():  # what had arrived is read at once
        task = asyncio.create_task(stream.__anext__())  # type: ignore[arg-type]
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancel_results(stream: AnswerStream) -> None:
    task = asyncio.create_task(stream.results())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def drop(stream: AnswerStream) -> None:
    """The last reference goes with the caller's own."""


WAYS = [aclose, leave, cancel_reader, cancel_results, drop]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("when", ["queued", "prefill", "decoding"])
def test_a_stream_that_is_let_go_of_frees_its_blocks_within_a_step(
    way: Callable[[AnswerStream], Awaitable[None]], when: str
) -> None:
    """B37: before it has a place, inside its prompt, and after three tokens; streamed and not."""

    async def main() -> None:
        gate = Gate()
        seats = 1 if when == "queued" else 2
        one = gated_engine(gate, limits=SchedulerLimits(max_num_seqs=seats, prefill_chunk=4))
        recorder = Recorder()
        one.observers.add(recorder)
        async with Runtime(one) as runtime:
            other = await runtime.submit(named("other", 5, params=LONG))
            await gate.entered()
            prompt = [1] * (50 if when == "prefill" else 3)
            streams = [await runtime.submit(named("gone", *prompt, params=LONG))]
            for _ in range(5 if when == "decoding" else 2):
                await gate.step()
            held = sum(s.request_id == "gone" for s in recorder.steps[-1].sequences)
            assert held == (when != "queued")
            num_before = len(recorder.of("gone"))
            await way(streams.pop())
            gc.collect()
            await gate.step()  # the step that was under way
            await gate.step()  # a step without it
            assert len(recorder.of("gone")) <= num_before + 1
            assert {s.request_id for s in recorder.steps[-1].sequences} == {"other"}
            assert runtime.num_open == 1
            # Blocks of one sequence of a few tokens: all that is held is the other's.
            assert recorder.steps[-1].num_kv_blocks_used == 1
            # Counted once, and with no token more than it had.
            assert [(r.id, r.finish_reason) for r in recorder.results] == [("gone", FinishReason.ABORT)]
            gate.open()
            await other.aclose()

    go(main)


def test_a_closed_stream_ends_and_its_id_is_free_at_once() -> None:
    async def main() -> None:
        gate = Gate()
        async with Runtime(gated_engine(gate)) as runtime:
            first = await runtime.submit(named("same", 3, params=LONG))
            await gate.entered()
            await gate.step()
            await first.aclose()
            assert [chunk async for chunk in first] == []
            await asyncio.sleep(0)
            second = await runtime.submit(named("same", 7))
            gate.open()
            (result,) = await second.results()
            assert outcome(result) == plain(named("same", 7))
            await first.aclose()

    go(main)


def test_an_aborted_request_says_so_on_its_stream() -> None:
    async def main() -> None:
        gate = Gate()
        async with Runtime(gated_engine(gate)) as runtime:
            stream = await runtime.submit(named("r", params=LONG))
            await gate.entered()
            runtime.abort("r")
            runtime.abort("nobody")
            gate.open()
            (result,) = await stream.results()
            assert result.finish_reason is FinishReason.ABORT

    go(main)


def test_a_full_queue_refuses_and_says_when_to_try_again() -> None:
    async def main() -> None:
        gate = Gate()
        one = gated_engine(gate, limits=SchedulerLimits(max_num_seqs=1))
        async with Runtime(one, max_queued=2) as runtime:
            streams = [await runtime.submit(named(f"r{i}", i)) for i in range(3)]
            with pytest.raises(BusyError, match="at most 3 at a time") as caught:
                await runtime.submit(named("r3", 3))
            assert caught.value.retry_after_s is None
            assert runtime.num_open == 3
            # A stream that is closed while it waits makes room.
            await streams.pop(1).aclose()
            await asyncio.sleep(0)
            streams.append(await runtime.submit(named("r4", 4)))
            with pytest.raises(InvalidParameterError, match="n = 4"):
                await runtime.submit(named("many", params=SamplingParams(n=4)))
            gate.open()
            results = [(await stream.results())[0] for stream in streams]
            assert [outcome(r) for r in results] == [plain(named("", i)) for i in (0, 2, 4)]
            for i in range(3):
                streams[i] = await runtime.submit(named(f"again{i}", i))
            with pytest.raises(BusyError) as caught:
                await runtime.submit(named("r5"))
            assert caught.value.retry_after_s is not None
            assert caught.value.retry_after_s >= 0.0

    go(main)


def test_a_request_that_is_refused_takes_no_place() -> None:
    async def main() -> None:
        bad = SamplingParams(structured_output=StructuredOutput(regex="[0-9"))
        async with Runtime(engine(), max_queued=0) as runtime:
            for _ in range(20):
                with pytest.raises(EmptyPromptError):
                    await runtime.submit(request([], request_id="r"))
                with pytest.raises(InvalidParameterError, match="unclosed"):
                    await runtime.submit(named("r", params=bad))
            assert (runtime.num_open, runtime.num_open_sequences) == (0, 0)
            stream = await runtime.submit(named("r", params=LONG))
            with pytest.raises(InvalidParameterError, match="still running"):
                await runtime.submit(named("r"))
            await stream.aclose()

    go(main)


def test_drain_finishes_what_is_there_and_takes_nothing_new() -> None:
    async def main() -> None:
        gate = Gate()
        async with Runtime(gated_engine(gate)) as runtime:
            streams = [await runtime.submit(named(f"r{i}", i)) for i in range(3)]
            await gate.entered()
            draining = asyncio.create_task(runtime.drain())
            await asyncio.sleep(0)
            with pytest.raises(ShutDownError, match="draining"):
                await runtime.submit(named("late"))
            assert not draining.done()
            gate.open()
            await draining
            assert await runtime.call(lambda e: (e.pool.num_used, e.has_work)) == (0, False)
            # What was finished can still be read.
            assert [outcome((await s.results())[0]) for s in streams] == [
                plain(named("", i)) for i in range(3)
            ]
            runtime.resume()
            (result,) = await (await runtime.submit(named("next", 9))).results()
            assert outcome(result) == plain(named("", 9))

    go(main)


def test_shutdown_with_time_finishes_every_request() -> None:
    async def main() -> None:
        runtime = Runtime(engine())
        runtime.start()
        streams = [await runtime.submit(named(f"r{i}", i)) for i in range(4)]
        report = await runtime.shutdown(None)
        assert (report.num_finished, report.num_ended, report.is_clean) == (4, 0, True)
        results = [(await s.results())[0] for s in streams]
        assert [outcome(r) for r in results] == [plain(named("", i)) for i in range(4)]
        for attempt in (runtime.submit(named("r")), runtime.call(lambda e: None), runtime.drain()):
            with pytest.raises(ShutDownError, match="stopped"):
                await attempt
        assert (await runtime.shutdown()).is_clean

    go(main)


def test_shutdown_at_its_deadline_ends_every_request_with_a_reason() -> None:
    async def main() -> None:
        gate = Gate()
        one = gated_engine(gate, limits=SchedulerLimits(max_num_seqs=1))
        runtime = Runtime(one)
        runtime.start()
        streams = [await runtime.submit(named(f"r{i}", i, params=LONG)) for i in range(3)]
        await gate.entered()
        await gate.step()
        stopping = asyncio.create_task(runtime.shutdown(0.0))
        await asyncio.sleep(0)
        gate.open()
        report = await stopping
        assert (report.num_finished, report.num_ended, report.is_clean) == (0, 3, True)
        results = [(await s.results())[0] for s in streams]
        assert {r.finish_reason for r in results} == {FinishReason.ERROR}
        assert all(isinstance(r.error, ShutDownError) for r in results)
        assert results[0].usage.completion_tokens > 0
        assert one.pool.num_used == 0

    go(main)


def test_a_runtime_is_started_once() -> None:
    async def main() -> None:
        runtime = Runtime(engine())
        with pytest.raises(ShutDownError, match="new"):
            await runtime.submit(named("r"))
        runtime.start()
        with pytest.raises(RuntimeError, match="a new one was expected"):
            runtime.start()
        with pytest.raises(RuntimeError, match="a draining one was expected"):
            runtime.resume()
        await runtime.shutdown(0.0)
        assert (await Runtime(engine()).shutdown()).is_clean

    go(main)


def test_a_call_runs_between_steps_and_brings_back_what_it_returns() -> None:
    async def main() -> None:
        recorder = Recorder()
        async with Runtime(engine()) as runtime:
            await runtime.add_observer(recorder)
            assert await runtime.call(lambda e: e.max_num_seqs) == 8
            with pytest.raises(ZeroDivisionError):
                await runtime.call(lambda e: 1 // 0)
            results: list[GenerationResult] = []
            for name in ("a", "b"):
                results += await (await runtime.submit(named(name))).results()
            await runtime.remove_observer(recorder)
            await (await runtime.submit(named("c"))).results()
        assert [r.id for r in recorder.results] == ["a", "b"]
        assert sum(s.num_sent_tokens for s in recorder.of("a")) == results[0].usage.completion_tokens

    go(main)


def test_one_stream_has_one_reader() -> None:
    async def main() -> None:
        gate = Gate()
        async with Runtime(gated_engine(gate)) as runtime:
            stream = await runtime.submit(named("r", params=LONG))
            await gate.entered()
            first = asyncio.create_task(stream.__anext__())  # type: ignore[arg-type]
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="two readers"):
                await stream.__anext__()
            first.cancel()
            gate.open()

    go(main)


def test_a_grammar_is_compiled_off_the_loop_and_holds() -> None:
    async def main() -> None:
        params = SamplingParams(structured_output=StructuredOutput(regex="[a-c]{4}d"), temperature=1.0)
        async with Runtime(engine()) as runtime:
            streams = [
                await runtime.submit(named(f"r{i}", i, params=params, k=i % 3, seed=i)) for i in range(6)
            ]
            for i, stream in enumerate(streams):
                (result,) = await stream.results()
                assert outcome(result) == plain(named("", i, params=params, seed=i))
                assert len(result.text) == 5

    go(main)


@pytest.mark.parametrize("deadline_s", [None, 0.0])
def test_observers_hear_once_that_it_is_over_on_the_engine_thread_and_after_the_last_step(
    deadline_s: float | None,
) -> None:
    class Keeper(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[tuple[str, int]] = []

        def on_end(self) -> None:
            self.ends.append((threading.current_thread().name, len(self.steps)))

    async def main() -> None:
        one, keeper = engine(), Keeper()
        one.observers.add(Recorder())  # one that does not want to hear it
        one.observers.add(keeper)
        runtime = Runtime(one)
        runtime.start()
        stream = await runtime.submit(named("r"))
        assert [chunk async for chunk in stream]
        assert keeper.ends == []
        await runtime.shutdown(deadline_s)
        await runtime.shutdown(deadline_s)
        assert keeper.ends == [("paceline-engine", len(keeper.steps))]

    go(main)
