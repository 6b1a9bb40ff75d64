"""What an earlier request computed is found again, by the target and by the draft model."""

from __future__ import annotations

import pytest

from paceline.engine.scheduler import SchedulerLimits
from paceline.records import SamplingParams
from tests.engine.scripted import (
    check_pool,
    drain,
    hashed_logits,
    make_engine,
    outcome,
    request,
    run,
    shared_engine,
    speculate,
    spoiled,
)

V = 12
LOGITS = hashed_logits(V, sharpness=1.5)
PROMPT = [i * 7 % V for i in range(50)]
PARAMS = SamplingParams(max_tokens=20)


def rows_of(engine) -> list[int]:  # type: ignore[no-untyped-def]
    return engine._model.rows


def test_a_shared_prefix_is_computed_once() -> None:
    engine = make_engine(LOGITS, V, block_size=4)
    first, same, longer = (
        run(engine, request(prompt, PARAMS))[0] for prompt in (PROMPT, PROMPT, [*PROMPT, 1, 2, 3])
    )
    assert outcome(same) == outcome(first)
    # Of 50 tokens 48 lie in full blocks.
    assert [r.num_cached_tokens for r in (first, same, longer)] == [0, 48, 48]
    starts = [i for i, rows in enumerate(rows_of(engine)) if rows > 1]
    assert [rows_of(engine)[i] for i in starts] == [50, 2, 5]
    stats = engine.kv_stats()
    assert (stats.num_prefix_queries, stats.num_prefix_hits) == (50 + 50 + 53, 48 + 48)
    assert outcome(longer) == outcome(run(make_engine(LOGITS, V), request([*PROMPT, 1, 2, 3], PARAMS))[0])


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    engine = make_engine(LOGITS, V, block_size=4)
    first, again = (run(engine, request(PROMPT[:48], PARAMS))[0] for _ in range(2))
    assert again.num_cached_tokens == 44
    assert outcome(first) == outcome(again)


def test_an_answer_is_a_prefix_of_the_next_turn() -> None:
    engine, drafter = shared_engine(LOGITS, V)
    (turn,) = run(engine, request(PROMPT, PARAMS, speculate(3, "model")))
    history = [*PROMPT, *turn.token_ids, 5, 6]
    (next_turn,) = run(engine, request(history, PARAMS, speculate(3, "model")))
    # 50 + 20 tokens, of which the last was never computed: 17 blocks of 4.
    assert next_turn.num_cached_tokens == 68
    assert drafter.num_prefix_hits >= 64
    assert outcome(next_turn) == outcome(run(make_engine(LOGITS, V), request(history, PARAMS))[0])
    check_pool(engine.pool)


def test_the_draft_model_finds_its_own_blocks_and_drafts_as_well() -> None:
    engine, drafter = shared_engine(LOGITS, V, spoiled(LOGITS))
    asked = request(PROMPT, PARAMS, speculate(3, "model"))
    first, again = run(engine, asked)[0], run(engine, asked)[0]
    assert again.speculation == first.speculation
    stats = engine.kv_stats()
    assert stats.num_draft_prefix_hits == drafter.num_prefix_hits == 48
    engine.clear_prefix_cache()
    (cleared,) = run(engine, asked)
    assert cleared.num_cached_tokens == 0
    assert drafter.num_prefix_hits == 48
    assert outcome(cleared) == outcome(first) == outcome(again)


@pytest.mark.parametrize("chunk", [3, 8, 50])
def test_requests_with_one_prompt_that_come_together_compute_it_once(chunk: int) -> None:
    limits = SchedulerLimits(prefill_chunk=chunk)
    engine = make_engine(LOGITS, V, block_size=4, limits=limits)
    results = run(engine, *(request(PROMPT, PARAMS, seed=seed) for seed in range(4)))
    assert len({outcome(r) for r in results}) == 1
    assert sum(rows_of(engine)) < 50 + 3 * (50 - 48) + 4 * 20
    alone = run(make_engine(LOGITS, V), request(PROMPT, PARAMS))[0]
    assert outcome(results[0]) == outcome(alone)


def test_one_that_waits_for_anothers_prompt_goes_on_when_that_one_is_aborted() -> None:
    limits = SchedulerLimits(prefill_chunk=8)
    engine = make_engine(LOGITS, V, block_size=4, limits=limits)
    for name in ("leader", "follower"):
        engine.submit(request(PROMPT, PARAMS, request_id=name))
    engine.step()
    engine.step()
    engine.abort("leader")
    *_, last = drain(engine)
    assert last.result is not None
    assert outcome(last.result) == outcome(run(make_engine(LOGITS, V), request(PROMPT, PARAMS))[0])
    check_pool(engine.pool)
    assert engine.pool.num_used == 0


def test_rejected_drafts_are_not_found_by_anyone() -> None:
    """A block is shared only with tokens that the target chose."""
    engine, _ = shared_engine(LOGITS, V, spoiled(LOGITS))
    (result,) = run(engine, request([1, 2, 3], SamplingParams(max_tokens=60), speculate(8, "model")))
    assert result.speculation.num_accepted < result.speculation.num_drafted
    chosen = [1, 2, 3, *result.token_ids]
    for cut in range(5, 60, 7):
        history = [*chosen[:cut], 11, 0, 3]
        again = run(engine, request(history, PARAMS, speculate(8, "model")))[0]
        assert again.num_cached_tokens <= cut
        assert outcome(again) == outcome(run(make_engine(LOGITS, V), request(history, PARAMS))[0])


def test_a_preempted_sequence_finds_what_is_left_of_its_own() -> None:
    engine = make_engine(LOGITS, V, block_size=4)
    engine.submit(request(PROMPT, PARAMS))
    chunks = [chunk for _ in range(5) for chunk in engine.step()]
    engine._scheduler._preempt(next(iter(engine._scheduler)))
    assert engine.pool.num_used == 0
    num_before = len(rows_of(engine))
    *_, last = chunks + drain(engine)
    # 50 tokens and 5 new ones, the last not computed: 52 in full blocks, and three to compute.
    assert rows_of(engine)[num_before] == 3
    assert last.result is not None
    assert last.result.num_cached_tokens == 0
    assert outcome(last.result) == outcome(run(make_engine(LOGITS, V), request(PROMPT, PARAMS))[0])
    assert engine.kv_stats().num_prefix_queries == 50
