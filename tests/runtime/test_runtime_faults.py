"""What goes wrong under a running server: steps that fail or hang, loops that end, Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from paceline.clock import ManualClock
from paceline.drafters.interface import DraftRequest
from paceline.drafters.scripted import ScriptedDrafter
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import BusyError, ShutDownError, StalledError, StepError
from paceline.records import FinishReason, SamplingParams
from paceline.runtime import Runtime, RuntimeState
from paceline.runtime import runtime as runtime_module
from paceline.runtime.places import Places
from paceline.runtime.watchdog import Watchdog
from paceline.step_records import Stall
from tests.engine.scripted import hashed_logits, make_engine, outcome, request, run, speculate
from tests.runtime.gated import LOGITS, Gate, V, gated_engine, go
from tests.runtime.test_runtime import LONG, PARAMS, engine, named, plain


def test_a_step_that_fails_as_a_whole_ends_its_requests_and_the_next_ones_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        one = engine()
        plan, calls = one._scheduler.plan, iter(range(100))

        def failing(now: float) -> Any:
            if next(calls) == 3:
                raise RuntimeError("no plan")
            return plan(now)

        monkeypatch.setattr(one._scheduler, "plan", failing)
        async with Runtime(one) as runtime:
            (result,) = await (await runtime.submit(named("r"))).results()
            assert result.finish_reason is FinishReason.ERROR
            assert isinstance(result.error, StepError)
            (again,) = await (await runtime.submit(named("r"))).results()
            assert outcome(again) == plain(named("r"))

    go(main)


def test_an_engine_that_is_broken_for_good_tells_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        gate = Gate()
        one = gated_engine(gate)
        async with Runtime(one) as runtime:
            stream = await runtime.submit(named("r", params=LONG))
            await gate.entered()

            def failing(now: float) -> Any:
                raise RuntimeError("no plan")

            monkeypatch.setattr(one._scheduler, "plan", failing)
            gate.open()
            with pytest.raises(StepError, match="an engine that cannot go on: RuntimeError: no plan"):
                await stream.results()
            assert runtime.state is RuntimeState.STOPPED
            with pytest.raises(ShutDownError):
                await runtime.submit(named("next"))

    go(main)


def test_a_drafter_that_fails_is_left_behind() -> None:
    def script(asked: DraftRequest) -> list[int]:
        raise OSError("drafter gone")

    async def main() -> None:
        one = make_engine(LOGITS, V, {"scripted": ScriptedDrafter(script)})
        async with Runtime(one) as runtime:
            asked = request([1], PARAMS, speculate(3), request_id="r")
            (result,) = await (await runtime.submit(asked)).results()
        assert outcome(result) == plain(named("r"))
        assert "drafter gone" in (result.speculation.fallback or "")

    go(main)


def test_a_loop_that_ends_takes_its_requests_with_it() -> None:
    gate = Gate()
    one = gated_engine(gate)
    runtime = Runtime(one)
    kept: list[Any] = []

    async def main() -> None:
        runtime.start()
        kept.append(await runtime.submit(named("r", params=LONG)))
        await gate.entered()

    go(main)
    gate.open()
    kept.clear()
    assert runtime._thread.stop(30.0)
    runtime._watchdog.stop()
    assert one.num_steps < 1000
    assert one.pool.num_used == 0 or not one.has_work


def test_a_step_that_never_ends_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime_module, "GRACE_S", 0.01)

    async def main() -> None:
        gate = Gate()
        runtime = Runtime(gated_engine(gate))
        runtime.start()
        stream = await runtime.submit(named("r", params=LONG))
        await gate.entered()
        report = await runtime.shutdown(0.0)
        assert not report.is_clean
        with pytest.raises(ShutDownError):
            await stream.results()
        gate.open()
        assert await asyncio.to_thread(runtime._thread.stop, 30.0)

    go(main)
    assert "it is left behind" in caplog.text


class Stalls(list[Stall]):
    def __call__(self, stall: Stall) -> None:
        self.append(stall)


def test_a_step_that_takes_too_long_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, stalls = ManualClock(), Stalls()
    watchdog = Watchdog(10.0, clock, stalls)
    watchdog.check_step()
    watchdog.begin_step(clock())
    clock.advance(9.9)
    watchdog.check_step()
    assert stalls == []
    clock.advance(0.1)
    watchdog.check_step()
    watchdog.check_step()
    assert [(s.since_s, s.is_step_stuck) for s in stalls] == [(10.0, True)]
    assert "one step of the engine has been running for 10 s" in caplog.text
    watchdog.end_step()
    clock.advance(50.0)
    watchdog.check_step()
    watchdog.begin_step(clock())
    clock.advance(10.0)
    watchdog.check_step()
    assert len(stalls) == 2


def test_a_sequence_that_steps_pass_over_is_reported_once_a_stall(caplog: pytest.LogCaptureFixture) -> None:
    clock, stalls = ManualClock(), Stalls()
    watchdog = Watchdog(10.0, clock, stalls)
    one = make_engine(LOGITS, V, limits=SchedulerLimits(max_num_seqs=1), clock=clock)
    for name in ("first", "second"):
        one.submit(request([1], LONG, request_id=name))
    for _ in range(8):
        clock.advance(2.5)
        one.step()
        watchdog.check_sequences(one)
    assert [(s.request_id, s.is_waiting) for s in stalls] == [("second", True)]
    assert "request second: nothing computed for 10 s; it waits" in caplog.text
    one.abort("first")
    one.step()
    one.step()
    clock.advance(2.5)
    watchdog.check_sequences(one)
    clock.advance(10.0)
    watchdog.check_sequences(one)
    assert len(stalls) == 2


def test_a_listener_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def listener(stall: Stall) -> None:
        raise ValueError

    clock = ManualClock()
    watchdog = Watchdog(1.0, clock, listener)
    watchdog.begin_step(clock())
    clock.advance(2.0)
    watchdog.check_step()
    assert "a listener to stalls failed" in caplog.text


def test_a_stalled_request_may_be_ended() -> None:
    async def main() -> None:
        gate, clock, stalls = Gate(), ManualClock(), Stalls()
        one = gated_engine(gate, limits=SchedulerLimits(max_num_seqs=1), clock=clock)
        async with Runtime(one, stall_after_s=1000.0, ends_stalled=True, clock=clock) as runtime:
            runtime.add_stall_listener(stalls)
            served = await runtime.submit(named("served", params=LONG))
            waiting = await runtime.submit(named("waiting"))
            await gate.entered()
            clock.advance(1000.0)
            await gate.step()
            await gate.step()
            (result,) = await waiting.results()
            assert isinstance(result.error, StalledError)
            assert [s.request_id for s in stalls] == ["waiting"]
            # Now the step itself is stuck: the streams must not wait for it.
            clock.advance(1000.0)
            runtime._watchdog.check_step()
            with pytest.raises(StalledError, match="1000 s"):
                await served.results()
            assert runtime.num_open == 0
            gate.open()
            assert await runtime.call(lambda e: e.pool.num_used) == 0
            (result,) = await (await runtime.submit(named("next"))).results()
            assert outcome(result) == plain(named("next"))

    go(main)


def test_the_time_to_wait_is_that_between_answers() -> None:
    clock = ManualClock()
    places = Places(2, clock)
    for _ in range(4):
        places.take(1)
        clock.advance(3.0)
        places.give_back(1, has_finished=True)
    places.take(2)
    with pytest.raises(BusyError) as caught:
        places.take(2)
    assert caught.value.retry_after_s == pytest.approx(6.0)
    places.give_back(2)
    assert places.num_taken == 0


PROGRAM = """
    import asyncio
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
    from paceline.runtime import Runtime
    from tests.engine.scripted import hashed_logits, make_engine, request
    from paceline.records import SamplingParams

    async def main():
        engine = make_engine(hashed_logits(24), 24, num_blocks=5000)
        async with Runtime(engine) as runtime:
            stream = await runtime.submit(request([1], SamplingParams(max_tokens=70_000)))
            async for chunk in stream:
                print("token", flush=True)

    {run}
"""


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("asyncio.run(main())", -signal.SIGINT),
        # No shutdown at all: the interpreter's own end has to stop the thread.
        ("""
    async def bare():
        runtime = Runtime(make_engine(hashed_logits(24), 24, num_blocks=5000))
        runtime.start()
        await runtime.submit(request([1], SamplingParams(max_tokens=70_000)))
        print("token", flush=True)
        await asyncio.sleep(3600)
    asyncio.run(bare())""", -signal.SIGINT),
    ],
)  # fmt: skip
def test_ctrl_c_ends_the_process_at_once(how: str, code: int) -> None:
    program = textwrap.dedent(PROGRAM.replace("{run}", how))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "token\n"
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (code, 1)
    assert "KeyboardInterrupt" in errors
    assert "Fatal" not in errors
    assert "the engine's thread ended" not in errors


def test_a_failure_of_delivery_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    """What breaks the engine's thread itself is logged with its cause."""

    async def main() -> None:
        runtime = Runtime(engine())
        runtime.start()
        with caplog.at_level(logging.CRITICAL):
            runtime._thread.post(lambda e: exec("raise SystemError('command')"))
            with pytest.raises((ShutDownError, StepError)):
                await runtime.call(lambda e: None)
        await runtime.shutdown(0.0)

    go(main)
    assert "the engine's thread ended" in caplog.text


def test_sampled_answers_do_not_hang_on_the_thread() -> None:
    async def main() -> None:
        params = SamplingParams(temperature=1.3, top_p=0.9, max_tokens=25)
        one = make_engine(hashed_logits(V, 1.0), V)
        async with Runtime(one) as runtime:
            streams = [
                await runtime.submit(request([i], params, seed=i, request_id=f"r{i}")) for i in range(5)
            ]
            found = [outcome((await s.results())[0]) for s in streams]
        alone = [
            outcome(run(make_engine(hashed_logits(V, 1.0), V), request([i], params, seed=i))[0])
            for i in range(5)
        ]
        assert found == alone

    go(main)
