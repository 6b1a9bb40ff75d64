"""The closed loop on an engine whose clock moves with its model alone: who waits, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.engine.scripted import always, hashed_logits, make_engine, oracle

from paceline.clock import ManualClock
from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.engine import Engine
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import ConfigError
from paceline.measure.load import LoadLoop, LoadRequest
from paceline.measure.load_cell import LoadCell
from paceline.measure.load_mode import Mode, parse_modes
from paceline.models.interface import KVStore, SequenceSlice
from paceline.records import SamplingParams

V = 12
LOGITS = hashed_logits(V)
OFF, ON = Mode(), Mode(3, "scripted", "on:3")


def timed_engine(seconds: float = 1.0, drafter: object = None) -> tuple[Engine, ManualClock]:
    """An engine whose every forward pass takes so many seconds, and nothing else takes any."""
    clock = ManualClock()
    drafters = {"scripted": drafter or oracle(LOGITS), "suffix": SuffixDrafter(answers=AnswerStore())}
    limits = SchedulerLimits(max_num_seqs=16)
    engine = make_engine(LOGITS, V, drafters, limits=limits, clock=clock)  # type: ignore[arg-type]
    forward = engine._model.forward

    def slow_forward(slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        clock.advance(seconds)
        return forward(slices, kv)

    engine._model.forward = slow_forward  # type: ignore[method-assign]
    return engine, clock


def requests(count: int, max_tokens: int = 9) -> list[LoadRequest]:
    params = SamplingParams(max_tokens=max_tokens)
    return [LoadRequest(f"r{i}", "route", (i % V, 1, 2), params, i) for i in range(count)]


def run(engine: Engine, clock: ManualClock, count: int, concurrency: int, *modes: Mode) -> list[LoadCell]:
    loop = LoadLoop(engine, clock=clock)
    return list(loop.cells("route", requests(count), [concurrency], modes))


def test_a_client_sends_its_next_request_when_it_has_its_answer() -> None:
    engine, clock = timed_engine()
    (cell,) = run(engine, clock, 6, 2, OFF)
    # Nine steps an answer, two answers at a time.
    assert cell.counts.wall_s == pytest.approx(27.0)
    assert cell.num_output_tokens == 54
    assert cell.tokens_per_second == pytest.approx(2.0)
    assert cell.counts.ttft_s == pytest.approx([1.0] * 6)
    assert cell.percentile_s("itl", 50) == cell.percentile_s("itl", 99) == pytest.approx(1.0)
    assert max(engine._model.rows) == 6  # type: ignore[attr-defined]
    assert (cell.num_outputs, cell.num_identical, cell.acceptance_rate) == (6, 6, None)


def test_tokens_that_come_together_share_the_time() -> None:
    engine, clock = timed_engine()
    off, on = run(engine, clock, 4, 4, ON, OFF)
    assert (off.speculation, on.speculation) == ("off", "on:3")
    assert on.acceptance_rate == 1.0
    assert on.acceptance_length == pytest.approx(4.0)
    # Behind the first token two steps, of four tokens each.
    assert on.counts.wall_s == pytest.approx(3.0)
    assert on.percentile_s("itl", 50) == pytest.approx(0.25)
    assert on.percentile_s("delivery", 50) == pytest.approx(1.0)
    assert sum(on.counts.token_gaps_s) == pytest.approx(sum(on.counts.chunk_gaps_s))
    assert on.num_identical == 4


def test_outputs_that_differ_are_seen() -> None:
    engine, clock = timed_engine()
    loop = LoadLoop(engine, clock=clock)
    judge = engine._commit

    def spoil(outcomes, trace):  # type: ignore[no-untyped-def]
        judge(outcomes, trace)
        for outcome in outcomes:
            sequence = outcome.part.sequence
            if outcome.num_drafted and sequence.request.id == "r1":
                sequence.token_ids[-1] = (sequence.token_ids[-1] + 1) % V

    engine._commit = spoil  # type: ignore[method-assign]
    _, on = loop.cells("route", requests(3), [3], [OFF, ON])
    assert (on.num_outputs, on.num_identical) == (3, 2)


def test_without_an_off_cell_nothing_is_compared() -> None:
    engine, clock = timed_engine()
    (cell,) = run(engine, clock, 2, 1, ON)
    assert cell.num_identical is None


def test_no_cell_drafts_from_answers_of_another() -> None:
    engine, clock = timed_engine()
    suffix = Mode(3, "suffix", "on:3:suffix")
    (first,) = run(engine, clock, 4, 1, suffix)
    (again,) = run(engine, clock, 4, 1, suffix)
    assert again.to_json() == first.to_json()


def test_where_the_time_of_steps_went() -> None:
    engine, clock = timed_engine()
    engine._drafters["scripted"] = drafter = always()
    propose = drafter.propose

    def slow_propose(asked):  # type: ignore[no-untyped-def]
        clock.advance(0.5)
        return propose(asked)

    drafter.propose = slow_propose  # type: ignore[method-assign]
    (cell,) = run(engine, clock, 1, 1, ON)
    steps = cell.counts.steps
    assert (steps.num_steps, steps.verify_s, steps.draft_s) == pytest.approx((9, 9.0, 4.0 - 0.5))
    assert steps.overhead_s == pytest.approx(0.0)
    assert cell.overhead_share == pytest.approx(0.0)


def test_peaks_and_preemptions_are_those_of_the_cell() -> None:
    clock = ManualClock()
    limits = SchedulerLimits(max_num_seqs=4)
    engine = make_engine(LOGITS, V, num_blocks=6, block_size=4, limits=limits, clock=clock)
    loop = LoadLoop(engine, clock=clock)
    crowded, alone = loop.cells("route", requests(4), [4, 1], [OFF])
    assert crowded.counts.num_preemptions > 0
    assert crowded.counts.peak_kv_blocks == 6
    assert alone.counts.num_preemptions == 0
    assert alone.counts.peak_kv_blocks == 3
    assert alone.counts.num_kv_blocks == 6


def test_modes_are_read() -> None:
    drafters = ["model", "suffix", "mixed"]
    assert parse_modes("off, on:3,on:5:suffix", drafters, "model") == (
        Mode(),
        Mode(3, "model", "on:3"),
        Mode(5, "suffix", "on:5:suffix"),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on", "off, auto, auto:DRAFTER, on:K or on:K:DRAFTER"),
        ("on:0", "K from 1 to 64"),
        ("on:65", "K from 1 to 64"),
        ("on:3:", "off, auto, auto:DRAFTER, on:K or on:K:DRAFTER"),
        ("on:three", "off, auto, auto:DRAFTER, on:K or on:K:DRAFTER"),
        ("", "off, auto, auto:DRAFTER, on:K or on:K:DRAFTER"),
        ("on:3:other", "a drafter that is there: suffix"),
        ("on:3", "a draft model for on:K"),
        ("off,off", "each mode once"),
    ],
)
def test_modes_that_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_modes(text, ["suffix"], None)
