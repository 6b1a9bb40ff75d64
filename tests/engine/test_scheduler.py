"""Who gives way when blocks run out, and how many drafts are worth asking for."""

from __future__ import annotations

import pytest

from paceline.clock import ManualClock
from paceline.engine.scheduler import SchedulerLimits
from paceline.records import SamplingParams
from tests.engine.scripted import always, drain, hashed_logits, letters, make_engine, request, speculate

VOCAB = 8


def test_out_of_blocks_the_youngest_gives_way() -> None:
    engine = make_engine(hashed_logits(VOCAB), VOCAB, num_blocks=6, block_size=4)
    for name in ("first", "second", "third"):
        engine.submit(request([1, 2, 3], SamplingParams(max_tokens=20), request_id=name))
    ended = [chunk.request_id for chunk in drain(engine) if chunk.is_last]
    assert ended == ["first", "second", "third"]
    assert engine.num_preemptions > 0


def test_a_newcomer_waits_until_there_is_a_block_for_each_runner_too() -> None:
    engine = make_engine(hashed_logits(VOCAB), VOCAB, num_blocks=4, block_size=4)
    engine.submit(request([1] * 10, SamplingParams(max_tokens=6), request_id="first"))
    engine.step()
    engine.submit(request([1, 2], SamplingParams(max_tokens=8), request_id="second"))
    drain(engine)
    assert engine.num_preemptions == 0


def test_drafts_of_a_sequence_that_gave_way_are_released_at_once() -> None:
    drafter = always(1)
    engine = make_engine(hashed_logits(VOCAB), VOCAB, {"scripted": drafter}, num_blocks=6, block_size=4)
    for name in ("first", "second"):
        engine.submit(request([1, 2, 3], SamplingParams(max_tokens=20), speculate(2), request_id=name))
    while not engine.num_preemptions:
        engine.step()
    assert drafter.released == [1]
    drain(engine)
    assert sorted(drafter.released) == [0, 1, 1]


def test_no_more_drafts_are_asked_for_than_can_be_emitted() -> None:
    """B46: the last place of an answer is for the target's own token."""
    drafter = always(*range(VOCAB))
    engine = make_engine(hashed_logits(VOCAB), VOCAB, {"scripted": drafter}, context_length=32)
    engine.submit(request([1, 2, 3], SamplingParams(max_tokens=9), speculate(8), request_id="capped"))
    engine.submit(request([1] * 28, None, speculate(8), request_id="full"))
    drain(engine)
    ends = {0: 12, 1: 32}
    assert all(asked.draft_length >= 1 for asked in drafter.requests)
    assert all(
        len(asked.token_ids) + asked.draft_length + 1 <= ends[asked.sequence_id] for asked in drafter.requests
    )


def test_drafts_of_padding_rows_never_reach_the_target() -> None:
    """B25: the first id past the vocabulary is cut off with all that follows."""
    seen: list[int] = []

    def next_logits(token_ids: list[int]) -> list[float]:
        seen.extend(token_ids)
        return [0.0, 1.0, 0.0, 0.0, 9.0, 9.0]

    engine = make_engine(next_logits, 6, {"scripted": always(1, 4, 1)}, tokens=letters(4))
    engine.submit(request([0], SamplingParams(max_tokens=6), speculate(3)))
    *_, last = drain(engine)
    assert last.result is not None
    assert last.result.token_ids == (1,) * 6
    assert set(seen) == {0, 1}


def test_a_request_that_does_not_fit_is_overtaken_for_a_while_only() -> None:
    clock = ManualClock()
    limits = SchedulerLimits(max_num_seqs=4, max_overtaking_s=2.0)
    engine = make_engine(hashed_logits(VOCAB), VOCAB, num_blocks=8, block_size=4, limits=limits, clock=clock)
    started: list[str] = []

    def step() -> None:
        started.extend(c.request_id for c in engine.step() if c.token_ids and c.request_id not in started)
        clock.advance(1.0)

    def submit(name: str, num_prompt: int, max_tokens: int) -> None:
        prompt = [ord(name[-1]) % VOCAB] * num_prompt
        engine.submit(request(prompt, SamplingParams(max_tokens=max_tokens), request_id=name))

    submit("running", 9, 7)
    step()
    submit("large", 24, 2)
    submit("small1", 1, 3)
    step()
    assert started == ["running", "small1"]
    step()
    submit("small2", 1, 3)
    step()
    assert "small2" not in started  # there was room for it, but the large one has waited for two seconds
    while engine.has_work:
        step()
    assert started == ["running", "small1", "large", "small2"]


def test_prompts_keep_their_rows_whatever_the_others_draft() -> None:
    limits = SchedulerLimits(max_num_batched_tokens=24, mixed_prefill_ratio=1.0)
    drafter = always(*range(VOCAB))
    engine = make_engine(hashed_logits(VOCAB), VOCAB, {"scripted": drafter}, limits=limits)
    for name in ("a", "b"):
        engine.submit(request([1, 2, 3], SamplingParams(max_tokens=90), speculate(8), request_id=name))
    engine.step()
    engine.submit(request([4] * 40, SamplingParams(max_tokens=1), request_id="long"))
    before = len(engine._model.rows)
    while not any(chunk.request_id == "long" for chunk in engine.step()):
        pass
    rows = engine._model.rows[before:]
    # Two rows, eight kept for the prompt, and the rest for drafts: 8 of the older sequence, 6 of the younger.
    assert rows == [24] * 5


def joint_start(late_by: float, step_s: float) -> list[int]:
    """Return the rows of each step where two long prompts come `late_by` seconds after a short one."""
    clock = ManualClock()
    limits = SchedulerLimits(max_num_batched_tokens=20, prefill_chunk=20, joint_start_s=2.0)
    engine = make_engine(hashed_logits(VOCAB), VOCAB, limits=limits, clock=clock)

    def step() -> None:
        expected = engine._scheduler.num_prompt_rows(clock()) + len(engine._scheduler.decoding())
        engine.step()
        assert engine._model.rows[-1] == expected
        clock.advance(step_s)

    engine.submit(request([1, 2], SamplingParams(max_tokens=90), request_id="short"))
    if late_by:
        step()
        clock.advance(late_by)
    for name in ("long1", "long2"):
        engine.submit(request([ord(name[-1]) % VOCAB] * 50, SamplingParams(max_tokens=1), request_id=name))
    while engine.num_running + engine.num_waiting > 1:
        step()
    return list(engine._model.rows)


def test_requests_that_come_together_start_together() -> None:
    assert joint_start(late_by=0, step_s=0.1) == [20, 20, 20, 20, 20, 7]


def test_a_stream_that_runs_is_not_held_up_by_who_comes_later() -> None:
    assert joint_start(late_by=0.1, step_s=0.1) == [2, *[9] * 12, 5]


def test_a_joint_start_ends_after_a_while() -> None:
    assert joint_start(late_by=0, step_s=1.0)[:4] == [20, 20, 9, 9]


def test_a_lone_prompt_takes_whole_chunks() -> None:
    limits = SchedulerLimits(max_num_batched_tokens=64, prefill_chunk=32)
    engine = make_engine(hashed_logits(VOCAB), VOCAB, limits=limits)
    for name in ("a", "b"):
        engine.submit(request([ord(name) % VOCAB] * 70, SamplingParams(max_tokens=2), request_id=name))
    engine.step()
    engine.step()
    assert engine._model.rows == [64, 64]


def test_sequences_that_run_keep_their_places_by_age() -> None:
    engine = make_engine(hashed_logits(VOCAB), VOCAB, num_blocks=16, block_size=4)
    for number in range(3):
        engine.submit(request([number], SamplingParams(max_tokens=30), request_id=f"r{number}"))
    engine.step()
    scheduler = engine._scheduler
    scheduler._preempt(next(s for s in scheduler if s.number == 0))
    assert [s.number for s in scheduler] == [1, 2, 0]
    engine.step()
    assert [s.number for s in scheduler] == [0, 1, 2]
    drain(engine)


@pytest.mark.parametrize(("num_streams", "k", "expected"), [(1, 0, 8), (7, 0, 11), (7, 4, 53), (2, 1, 8)])
def test_a_prompt_takes_rows_in_proportion_to_those_who_decode(
    num_streams: int, k: int, expected: int
) -> None:
    engine = make_engine(hashed_logits(VOCAB), VOCAB, {"scripted": always(*range(VOCAB))}, num_blocks=99)
    for number in range(num_streams):
        params = SamplingParams(max_tokens=50)
        engine.submit(request([number], params, speculate(k), request_id=f"r{number}"))
    engine.step()
    engine.submit(request([1] * 500, SamplingParams(max_tokens=1), request_id="long"))
    engine.step()
    assert engine._model.rows[-1] == num_streams * (k + 1) + expected
