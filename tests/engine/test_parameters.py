"""Parameters that need more than one row or one answer: n, and log-probabilities of the prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.engine.engine import Engine
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import InvalidParameterError
from paceline.models.scripted import ScriptedModel
from paceline.records import FinishReason, PositionLogprobs, Request, SamplingParams, SpeculationParams
from paceline.sampling.noise import derive_seed
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

V = 24
LOGITS = hashed_logits(V, sharpness=1.5)


def engine(**more: Any) -> Engine:
    drafter = draft_model(ScriptedModel(hashed_logits(V, sharpness=1.4), V), num_blocks=64, block_size=16)
    return make_engine(LOGITS, V, {"model": drafter}, **more)


def choices(one: Engine, asked: Request) -> list[Any]:
    one.submit(asked)
    results = [c.result for c in drain(one) if c.result is not None]
    return sorted(results, key=lambda r: r.index)


@pytest.mark.parametrize("speculation", [OFF, speculate(3, "model")])
def test_choice_j_is_the_answer_to_the_derived_seed(speculation: SpeculationParams) -> None:
    params = SamplingParams(temperature=1.2, max_tokens=20, n=5, logprobs=1)
    results = choices(engine(), request([1, 2], params, speculation, seed=42))
    assert [r.index for r in results] == list(range(5))
    assert results[0].seed == 42
    assert len({r.token_ids for r in results}) == 5
    for result in results:
        assert result.seed == derive_seed(42, result.index)
        alone = params.model_copy(update={"n": 1})
        (expected,) = run(engine(), request([1, 2], alone, OFF, seed=result.seed))
        assert outcome(result) == outcome(expected)
        assert result.logprobs == expected.logprobs


def test_chunks_say_which_choice_they_belong_to() -> None:
    one = engine()
    one.submit(request([1], SamplingParams(temperature=1.0, max_tokens=9, n=3), seed=1))
    chunks = drain(one)
    assert {c.request_id for c in chunks} == {"r"}
    for index in range(3):
        own = [c for c in chunks if c.index == index]
        assert own[-1].result is not None
        assert "".join(c.text for c in own) == own[-1].result.text
        assert [c.is_last for c in own] == [False] * (len(own) - 1) + [True]


def test_abort_ends_all_choices() -> None:
    one = engine(limits=SchedulerLimits(max_num_seqs=2))
    one.submit(request([1], SamplingParams(max_tokens=50, n=4, temperature=1.0)))
    one.step()
    assert one.abort("r")
    assert one.pool.num_used == 0
    results = [c.result for c in drain(one) if c.result is not None]
    assert [r.finish_reason for r in results] == [FinishReason.ABORT] * 4


def test_an_id_with_choices_left_is_in_use() -> None:
    one = engine(limits=SchedulerLimits(max_num_seqs=1))
    one.submit(request([1], SamplingParams(max_tokens=3, n=2)))
    with pytest.raises(InvalidParameterError, match="still running"):
        one.submit(request([1]))


def expected_prompt_logprobs(prompt: list[int], count: int) -> list[PositionLogprobs | None]:
    """The definition: log-softmax of the target's row at each position before the token."""
    entries: list[PositionLogprobs | None] = [None]
    for position, token_id in enumerate(prompt[1:], 1):
        row = LOGITS(prompt[:position]).astype(np.float64)
        logs = row - np.log(np.exp(row).sum())
        top = sorted(range(V), key=lambda i: (-row[i], i))[:count]
        entries.append(PositionLogprobs(token_id, logs[token_id], tuple((i, logs[i]) for i in top)))
    return entries


def close(one: PositionLogprobs | None, other: PositionLogprobs | None) -> bool:
    if one is None or other is None:
        return one is other
    same_ids = one.token_id == other.token_id and [i for i, _ in one.top] == [i for i, _ in other.top]
    pairs = zip(
        [one.logprob, *(p for _, p in one.top)], [other.logprob, *(p for _, p in other.top)], strict=True
    )
    return same_ids and all(abs(a - b) < 1e-4 for a, b in pairs)


@pytest.mark.parametrize("chunk", [1, 16, 64])
@pytest.mark.parametrize("speculation", [OFF, speculate(4, "model")])
def test_prompt_logprobs_of_prompts_that_share_steps(chunk: int, speculation: SpeculationParams) -> None:
    """B15: five prompts sent together, in chunks."""
    prompts = [[(3 * i + size) % V for i in range(size)] for size in (50, 7, 31, 1, 64)]
    limits = SchedulerLimits(max_num_seqs=5, prefill_chunk=chunk, max_num_batched_tokens=70)
    params = SamplingParams(max_tokens=4, prompt_logprobs=2, logprobs=1)
    results = run(engine(limits=limits), *(request(p, params, speculation) for p in prompts))
    for prompt, result in zip(prompts, results, strict=True):
        found = result.prompt_logprobs
        assert found is not None
        assert len(found) == len(prompt)
        assert all(map(close, found, expected_prompt_logprobs(prompt, 2)))
        (alone,) = run(engine(), request(prompt, params, OFF))
        assert found == alone.prompt_logprobs
        assert outcome(result) == outcome(alone)
        assert result.logprobs == alone.logprobs


def test_prompt_logprobs_survive_preemption() -> None:
    limits = SchedulerLimits(max_num_seqs=6, prefill_chunk=5)
    tight = engine(num_blocks=20, block_size=4, limits=limits)
    params = SamplingParams(max_tokens=30, prompt_logprobs=1)
    prompts = [[(i + size) % V for i in range(size)] for size in (12, 20, 9, 17, 22)]
    results = run(tight, *(request(p, params, speculate(3, "model")) for p in prompts))
    assert tight.num_preemptions > 0
    for prompt, result in zip(prompts, results, strict=True):
        assert result.prompt_logprobs is not None
        assert all(map(close, result.prompt_logprobs, expected_prompt_logprobs(prompt, 1)))


def test_only_the_first_choice_carries_the_prompt() -> None:
    params = SamplingParams(max_tokens=3, n=3, prompt_logprobs=0)
    first, *others = choices(engine(), request([1, 2, 3], params))
    assert [entry is None for entry in first.prompt_logprobs] == [True, False, False]
    assert [r.prompt_logprobs for r in others] == [None, None]


def test_rows_are_scored_only_where_that_was_asked() -> None:
    one = engine()
    run(one, request([1] * 40, SamplingParams(max_tokens=2)))
    params = SamplingParams(max_tokens=2, prompt_logprobs=0)
    (sequence,) = one.prepare(request([1] * 40, params))
    assert not sequence.can_reuse_prefix
    (free,) = one.prepare(request([1] * 40))
    assert free.can_reuse_prefix
    assert sequence.num_scored_rows(40) == 40
    assert free.num_scored_rows(40) == 0
