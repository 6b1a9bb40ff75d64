"""The step over mixed batches: chunks, drafts, preemption, streams. Always against plain decoding alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.scripted import ScriptedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import InvalidParameterError
from paceline.models.scripted import ScriptedModel
from paceline.records import SamplingParams, Verification
from tests.engine.scripted import (
    OFF,
    draft_model,
    drain,
    hashed_logits,
    make_engine,
    outcome,
    request,
    run,
    speculate,
)

V = 12
LOGITS = hashed_logits(V, sharpness=1.5)


def all_drafters(num_blocks: int = 64) -> dict[str, object]:
    model = ScriptedModel(LOGITS, V)
    rng = np.random.default_rng(1)
    return {
        "model": draft_model(model, num_blocks=num_blocks, block_size=4, prefill_chunk=8),
        "suffix": SuffixDrafter(1),
        "random": ScriptedDrafter(lambda asked: rng.integers(0, V, asked.draft_length).tolist()),
    }


def plain(prompt: Sequence[int], params: SamplingParams, seed: int) -> tuple[object, ...]:
    return outcome(run(make_engine(LOGITS, V), request(prompt, params, seed=seed))[0])


requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, V - 1), min_size=1, max_size=40),
        st.integers(1, 30),
        st.sampled_from([0.0, 0.9]),
        st.sampled_from(["model", "suffix", "random", "off"]),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(
    requests,
    st.integers(20, 60),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 16),
)
def test_any_mix_equals_plain_decoding(  # type: ignore[no-untyped-def]
    asked, num_blocks: int, max_num_seqs: int, max_rows: int, chunk: int
) -> None:
    limits = SchedulerLimits(max_num_seqs, max_rows, chunk)
    engine = make_engine(LOGITS, V, all_drafters(), num_blocks=num_blocks, block_size=4, limits=limits)
    made, expected = [], []
    for seed, (prompt, max_tokens, temperature, drafter, k) in enumerate(asked):
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, frequency_penalty=0.3)
        made.append(request(prompt, params, OFF if drafter == "off" else speculate(k, drafter), seed=seed))
        expected.append(plain(prompt, params, seed))
    assert [outcome(r) for r in run(engine, *made)] == expected
    assert engine.pool.num_free == num_blocks
    assert all(rows <= max_rows for rows in engine._model.rows)


def test_preempted_sequences_come_back_to_the_same_answer() -> None:
    engine = make_engine(LOGITS, V, all_drafters(), num_blocks=14, block_size=4)
    params = SamplingParams(max_tokens=40)
    prompts = [[i, i + 1, i + 2] for i in range(5)]
    results = run(engine, *(request(p, params, speculate(3, "model")) for p in prompts))
    assert engine.num_preemptions > 0
    assert [outcome(r) for r in results] == [plain(p, params, 0) for p in prompts]


def test_a_long_prompt_does_not_hold_up_those_who_decode() -> None:
    engine = make_engine(LOGITS, V, limits=SchedulerLimits(max_num_batched_tokens=32, prefill_chunk=16))
    params = SamplingParams(max_tokens=50)
    engine.submit(request([1], params, request_id="first"))
    engine.step()
    engine.submit(request([2] * 200, params, request_id="long"))
    for _ in range(10):
        chunks = engine.step()
        assert [c.request_id for c in chunks if c.token_ids][:1] == ["first"]
    assert engine._model.rows[1:11] == [9] * 10


def test_first_token_leaves_before_the_draft_model_has_run() -> None:
    drafters = all_drafters()
    engine = make_engine(LOGITS, V, drafters)
    engine.submit(request([1] * 20, SamplingParams(max_tokens=9), speculate(3, "model")))
    chunks = engine.step()
    assert chunks[0].token_ids
    assert drafters["model"]._model.num_forwards == 0  # type: ignore[attr-defined]


def test_off_runs_no_draft_work() -> None:
    drafters = all_drafters()
    engine = make_engine(LOGITS, V, drafters)
    for speculation in (OFF, speculate(0, "model")):
        run(engine, request([1] * 20, SamplingParams(max_tokens=9), speculation))
    assert drafters["model"]._model.num_forwards == 0  # type: ignore[attr-defined]
    assert drafters["model"].pool.num_used == 0  # type: ignore[attr-defined]
    assert max(engine._model.rows[1:9]) == 1


def test_one_batch_may_mix_draft_lengths() -> None:
    engine = make_engine(LOGITS, V, all_drafters())
    params = SamplingParams(max_tokens=20)
    off, short, long = run(
        engine,
        request([1], params, OFF),
        request([1], params, speculate(1, "model")),
        request([1], params, speculate(6, "model")),
    )
    assert off.token_ids == short.token_ids == long.token_ids
    assert off.speculation.num_drafted == 0
    assert off.speculation.drafter is None
    assert 0 < short.speculation.num_steps > long.speculation.num_steps
    assert long.speculation.drafter == "model"


def test_rejection_is_deterministic_and_greedy_rejection_is_plain() -> None:
    params = SamplingParams(max_tokens=20, temperature=1.0)
    rejection = speculate(3, "random", verification=Verification.REJECTION)
    first, again = (
        run(make_engine(LOGITS, V, all_drafters()), request([1], params, rejection))[0] for _ in range(2)
    )
    assert outcome(first) == outcome(again)
    greedy = SamplingParams(max_tokens=20)
    (result,) = run(make_engine(LOGITS, V, all_drafters()), request([1], greedy, rejection))
    assert outcome(result) == plain([1], greedy, 0)


def test_an_id_in_use_is_refused() -> None:
    engine = make_engine(LOGITS, V)
    engine.submit(request([1], SamplingParams(max_tokens=3), request_id="same"))
    with pytest.raises(InvalidParameterError, match="still running"):
        engine.submit(request([1], request_id="same"))
    drain(engine)
    engine.submit(request([1], SamplingParams(max_tokens=3), request_id="same"))
    assert len(drain(engine)) >= 1


def test_abort_frees_blocks_at_once_and_reports_once() -> None:
    engine = make_engine(LOGITS, V, all_drafters())
    engine.submit(request([1] * 30, SamplingParams(max_tokens=100), speculate(4, "model")))
    for _ in range(3):
        engine.step()
    assert engine.abort("r")
    assert engine.pool.num_used == 0
    assert not engine.abort("r")
    (last,) = drain(engine)
    assert last.result is not None
    assert last.result.usage.completion_tokens == len(last.result.token_ids) > 0
