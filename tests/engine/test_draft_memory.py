"""Draft blocks come from the target's pool: held while a sequence speculates, given back when it is short."""

from __future__ import annotations

import gc
import weakref

import pytest

from paceline.drafters.model import ModelDrafter
from paceline.engine.engine import Engine
from paceline.errors import ConfigError
from paceline.models.scripted import ScriptedModel
from paceline.records import SamplingParams
from tests.engine.scripted import (
    OFF,
    always,
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
ON = speculate(3, "model")


def submit(engine: Engine, name: str, num_prompt: int, max_tokens: int, speculation=ON) -> None:  # type: ignore[no-untyped-def]
    prompt = [(ord(name) + i) % V for i in range(num_prompt)]
    engine.submit(request(prompt, SamplingParams(max_tokens=max_tokens), speculation, request_id=name))


def test_both_models_draw_from_one_pool_without_a_clash() -> None:
    """The scripted stores share their memory: had both a block at once, a history would read wrong."""
    engine, drafter = shared_engine(LOGITS, V, spoiled(LOGITS), num_blocks=40)
    prompts = [[i] * (5 + 3 * i) for i in range(4)]
    params = SamplingParams(max_tokens=30)
    results = run(engine, *(request(p, params, ON) for p in prompts))
    assert [outcome(r) for r in results] == [
        outcome(run(make_engine(LOGITS, V), request(p, params))[0]) for p in prompts
    ]
    assert sum(r.speculation.num_accepted for r in results) > 0
    assert drafter.pool is engine.pool
    assert engine.kv_stats().num_held_by_drafts == engine.pool.num_used == 0
    check_pool(engine.pool)


def test_a_draft_block_holds_more_positions_than_a_target_block() -> None:
    engine, drafter = shared_engine(LOGITS, V, num_blocks=40)
    submit(engine, "a", 20, 30)
    engine.step()
    engine.step()
    # 20 known tokens, one new, three drafts: 6 blocks of 4 at the target, 3 blocks of 8 at the draft model.
    assert engine.kv_stats().num_held_by_drafts == drafter.num_held_blocks == 3


def test_drafts_give_way_before_any_sequence_does() -> None:
    engine, drafter = shared_engine(LOGITS, V, num_blocks=16)
    submit(engine, "a", 12, 28)
    submit(engine, "b", 12, 8)
    engine.step()
    engine.step()
    assert drafter.num_held_blocks > 0
    # 40 and 20 positions: 10 and 5 blocks of 16. With draft blocks beside them it is more than there are.
    results = {c.request_id: c.result for c in drain(engine) if c.result}
    assert engine.num_preemptions == 0
    assert {name: len(r.token_ids) for name, r in results.items()} == {"a": 28, "b": 8}
    assert engine.pool.num_used == 0


def test_drafts_give_way_to_a_newcomer() -> None:
    engine, drafter = shared_engine(LOGITS, V, num_blocks=16)
    submit(engine, "a", 20, 12)
    engine.step()
    engine.step()
    assert drafter.num_held_blocks > 0
    submit(engine, "b", 32, 1, OFF)  # 8 blocks, and one for the runner; 8 are free
    engine.step()
    assert engine._scheduler.num_running == 2
    assert drafter.num_held_blocks == 0
    drain(engine)


def test_the_youngest_drafts_give_way_first() -> None:
    engine, drafter = shared_engine(LOGITS, V, num_blocks=40)
    for name in "abc":
        submit(engine, name, 10, 30)
    engine.step()
    engine.step()
    assert drafter.reclaim()
    assert [drafter.num_cached_tokens(i) > 0 for i in range(3)] == [True, True, False]
    while drafter.reclaim():
        pass
    assert drafter.num_held_blocks == 0
    assert not drafter.reclaim()
    drain(engine)


def test_a_sequence_is_not_begun_where_the_target_will_soon_need_the_room() -> None:
    """At 21 tokens and three drafts: six blocks for the target, three for the draft, and a spare one."""
    for num_blocks, is_begun in ((9, False), (10, True)):
        engine, drafter = shared_engine(LOGITS, V, num_blocks=num_blocks)
        submit(engine, "a", 20, 12)
        engine.step()
        engine.step()
        assert drafter.num_held_blocks == 3 * is_begun
        (result,) = [c.result for c in drain(engine) if c.result]
        assert (result.speculation.num_drafted > 0) is is_begun


def test_without_speculation_the_target_may_use_the_whole_memory() -> None:
    engine, drafter = shared_engine(LOGITS, V, num_blocks=16)
    (result,) = run(engine, request([1] * 10, None, OFF))
    assert len(result.token_ids) == 16 * 4 - 10
    assert engine.pool.peak_num_used == 16
    assert drafter._model.num_forwards == 0  # type: ignore[union-attr]


def test_at_k_0_nothing_is_reserved_for_drafts() -> None:
    """B39: neither draft blocks nor room behind the row."""
    engine, drafter = shared_engine(LOGITS, V, drafters={"always": always(1, 2, 3)})
    submit(engine, "a", 7, 10, speculate(0, "model"))
    submit(engine, "b", 7, 10, speculate(0, "always"))
    while engine.has_work:
        engine.step()
        for sequence in engine._scheduler:
            assert len(sequence.table.block_ids) * 4 <= len(sequence.token_ids) + 3
        assert drafter.num_held_blocks == 0
    assert drafter._model.num_forwards == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(("num_prompt", "k"), [(n, k) for n in (14, 15, 16) for k in (1, 5, 20)])
def test_a_wide_step_has_the_blocks_that_it_writes(num_prompt: int, k: int) -> None:
    """B3: at 15 tokens and 20 drafts, positions 15 to 35 in three blocks of 16."""
    engine = make_engine(LOGITS, V, {"scripted": always(*range(k))}, block_size=16)
    engine.submit(request([1] * num_prompt, SamplingParams(max_tokens=60), speculate(k)))
    engine.step()
    engine._drafting.plan(engine._scheduler, 0.0)
    plan = engine._scheduler.plan(0.0)
    (part,) = plan.planned
    assert part.draft_length == k
    assert len(part.sequence.table.block_ids) == -(-(num_prompt + 1 + k) // 16)


class Loader:
    """Gives the same draft model again, and counts."""

    def __init__(self) -> None:
        self.num_loads = 0

    def __call__(self) -> ScriptedModel:
        self.num_loads += 1
        return ScriptedModel(spoiled(LOGITS), V, kv_bytes_per_token=8)


def test_draft_weights_may_be_unloaded_and_loaded_again_while_requests_run() -> None:
    loader = Loader()
    engine, drafter = shared_engine(LOGITS, V, spoiled(LOGITS), draft_options={"reload": loader})
    model = weakref.ref(drafter._model)
    params = SamplingParams(max_tokens=60)
    expected = outcome(run(make_engine(LOGITS, V), request([1, 2, 3], params))[0])
    engine.submit(request([1, 2, 3], params, ON))
    for _ in range(5):
        engine.step()
    engine.unload_drafter("model")
    gc.collect()
    assert model() is None
    assert (drafter.num_held_blocks, drafter.is_loaded) == (0, False)
    assert not any(key[0] == "draft" for key in engine.pool._block_of)
    for _ in range(5):
        (chunk,) = engine.step()
        assert len(chunk.token_ids) == 1
    engine.load_drafter("model")
    engine.load_drafter("model")
    assert loader.num_loads == 1
    *_, last = drain(engine)
    assert last.result is not None
    assert outcome(last.result) == expected
    again = run(engine, request([5, 6], SamplingParams(max_tokens=30), ON))[0]
    fresh, _ = shared_engine(LOGITS, V, spoiled(LOGITS))
    assert again.speculation == run(fresh, request([5, 6], SamplingParams(max_tokens=30), ON))[0].speculation
    assert again.speculation.num_accepted > 0


def test_what_cannot_be_unloaded_is_refused() -> None:
    engine, drafter = shared_engine(LOGITS, V, drafters={"always": always(1)})
    with pytest.raises(ConfigError, match="one that can be loaded again"):
        engine.unload_drafter("model")
    assert isinstance(drafter, ModelDrafter)
    assert drafter.is_loaded
    for name in ("always", "nobody"):
        with pytest.raises(ConfigError, match=f"drafter '{name}' to load or unload.*'model'"):
            engine.unload_drafter(name)
