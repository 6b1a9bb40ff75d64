"""Faults that other engines had in their KV: shared, taken back, or left behind by rejected drafts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.drafters.interface import DraftRequest
from paceline.drafters.scripted import ScriptedDrafter
from paceline.engine.scheduler import SchedulerLimits
from paceline.models.scripted import table_logits
from paceline.records import FinishReason
from tests.engine.scripted import (
    check_pool,
    drain,
    hashed_logits,
    make_engine,
    oracle,
    outcome,
    request,
    run,
    shared_engine,
    speculate,
    spoiled,
)
from tests.tiny_models import TinyModel

V = 24
LOGITS = hashed_logits(V)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_no_token_is_dropped_after_a_rejection_whatever_is_cached(k: int) -> None:
    """B5: a chain of A, B, C, drafted wrongly at random, again and again over one prefix cache."""
    rng = np.random.default_rng(k)
    wrong = ScriptedDrafter(lambda asked: rng.integers(0, 4, asked.draft_length).tolist())
    cycle = table_logits({0: 1, 1: 2, 2: 0}, 4)
    engine = make_engine(cycle, 4, {"scripted": wrong}, num_blocks=100, block_size=4)
    for start in range(3):
        prompt = [(start + i) % 3 for i in range(20)]
        for _ in range(2):
            params = SamplingParams(max_tokens=300, temperature=1.0, seed=start)
            (result,) = run(engine, request(prompt, params, speculate(k)))
            assert result.token_ids == tuple((start + 20 + i) % 3 for i in range(300))
        assert result.num_cached_tokens == 16


@pytest.mark.parametrize("index", range(5))
def test_what_follows_an_end_token_is_not_found_by_the_next_request(index: int) -> None:
    """B8: the end at each place of an accepted block; nothing behind it may be in the prefix cache."""
    (plain,) = run(make_engine(LOGITS, V), request([1, 2, 3], SamplingParams(max_tokens=9)))
    end = plain.token_ids[index + 1]
    engine = make_engine(LOGITS, V, {"scripted": oracle(LOGITS)}, eos_ids=frozenset({end}), block_size=1)
    (result,) = run(engine, request([1, 2, 3], SamplingParams(max_tokens=9), speculate(4)))
    assert result.finish_reason is FinishReason.STOP
    assert result.token_ids[-1] == end
    known = 3 + len(result.token_ids) - 1  # all but the end itself, which was never computed
    history = [1, 2, 3, *result.token_ids]
    while len(history) < 12:
        history.append(int(np.argmax(LOGITS(history))))
    (after,) = run(engine, request(history, SamplingParams(max_tokens=1)))
    assert after.num_cached_tokens == known


def test_no_page_leaks_from_a_shared_pool() -> None:
    """B32: 200 requests on few pages, a third aborted in the middle, some preempted; counted every step."""
    rng = np.random.default_rng(32)
    engine, drafter = shared_engine(
        LOGITS,
        V,
        spoiled(LOGITS),
        num_blocks=30,
        limits=SchedulerLimits(max_num_seqs=8, prefill_chunk=16),
    )
    num_held = 0
    for i in range(200):
        prompt = rng.integers(0, V, rng.integers(1, 60)).tolist()
        params = SamplingParams(max_tokens=int(rng.integers(1, 60)))
        engine.submit(request(prompt, params, speculate(8, "model"), request_id=f"r{i}"))
        for _ in range(int(rng.integers(0, 4))):
            engine.step()
            check_pool(engine.pool)
            num_held = max(num_held, drafter.num_held_blocks)
        if i % 3 == 0:
            engine.abort(f"r{i - int(rng.integers(0, 3))}")
    drain(engine)
    assert engine.num_preemptions > 0
    assert num_held > 0
    assert engine.pool.num_used == drafter.num_held_blocks == 0
    engine.clear_prefix_cache()
    assert (engine.pool.num_free, engine.pool.num_cached) == (30, 0)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_sliding_window_takes_back_what_drafts_wrote(family: str, tmp_path: Path) -> None:
    """B34: window 32, a prompt of 30, half the drafts right: the window fills while drafts fall."""
    more = {"num_layers": 7, "head_dim": 32, "num_kv_heads": 1, "is_tied": True} if family == "gemma3" else {}
    model = TinyModel(family, tensor_type="Q8_0", sliding_window=32, **more).write(tmp_path / "model.gguf")
    params = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=1)
    prompt = [5 + i % 20 for i in range(30)]
    with LLM(str(model), drafter="suffix", context_length=128, kv_memory="16MiB") as llm:
        (off,) = llm.generate(prompt, params, speculation=SpeculationParams(enabled=False))

        def half(asked: DraftRequest) -> list[int]:
            done = len(asked.token_ids) - len(prompt)
            right = off.token_ids[done : done + asked.draft_length]
            return [t if i < 2 else (t + 1) % 200 for i, t in enumerate(right)]

        llm.loaded.engine._drafters["half"] = ScriptedDrafter(half)
        llm.loaded.engine.clear_prefix_cache()
        (on,) = llm.generate(prompt, params, speculation=SpeculationParams(drafter="half", draft_length=4))
    assert outcome(on) == outcome(off)
    assert on.logprobs == off.logprobs
    assert 0 < on.speculation.num_accepted < on.speculation.num_drafted


def test_what_one_request_left_in_a_block_is_not_drafted_from_by_the_next() -> None:
    """B36: a long request, one that is cancelled, then a short one: its acceptance is a fresh engine's."""
    draft = spoiled(LOGITS)
    engine, drafter = shared_engine(LOGITS, V, draft)
    params = SamplingParams(max_tokens=60)
    run(engine, request([i % V for i in range(150)], params, speculate(4, "model")))
    engine.submit(request([i % 7 for i in range(120)], params, speculate(4, "model"), request_id="cancelled"))
    for _ in range(5):
        engine.step()
    assert engine.abort("cancelled")
    drain(engine)
    short = request([i % 5 for i in range(60)], params, speculate(4, "model"))
    fresh, _ = shared_engine(LOGITS, V, draft)
    assert run(engine, short)[0].speculation == run(fresh, short)[0].speculation
    assert drafter.num_held_blocks == 0
