"""Who gives way when blocks run out, and how many drafts are worth asking for."""

from __future__ import annotations

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
