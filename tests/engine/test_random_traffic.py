"""Random arrivals, aborts, drafts and budgets over a scripted target, against ten lines of plain decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.clock import ManualClock
from paceline.drafters.scripted import ScriptedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.scheduler import SchedulerLimits
from paceline.records import FinishReason, GenerationResult, SamplingParams
from paceline.sampling.noise import gumbel
from tests.engine.scripted import OFF, check_pool, hashed_logits, request, shared_engine, speculate, spoiled

V = 8
LOGITS = hashed_logits(V, sharpness=1.0)
NUM_STEPS = 3000
MOST_PROMPT = 40


def plain_decode(prompt: list[int], num_tokens: int, temperature: float, seed: int) -> list[int]:
    token_ids = list(prompt)
    for index in range(num_tokens):
        scores = LOGITS(token_ids).astype(np.float64)
        if temperature:
            scores = scores / temperature + gumbel(seed, index, np.arange(V))
        token_ids.append(int(np.argmax(scores)))
    return token_ids[len(prompt) :]


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: list[int]
    num_tokens: int
    temperature: float
    drafter: str
    k: int
    abort_after: int | None
    is_next_turn: bool
    """Whether the prompt of the arrival before it, and its answer, stand before the prompt."""


PREFIXES = ([], [1, 2, 3, 4, 5, 6, 7, 0] * 2, [1, 2, 3, 4, 5, 6, 7, 0, 3, 3, 3, 3])
arrivals = st.builds(
    Arrival,
    step=st.integers(0, 60),
    prompt=st.builds(
        lambda prefix, rest: [*prefix, *rest],
        st.sampled_from(PREFIXES),
        st.lists(st.integers(0, V - 1), min_size=1, max_size=20),
    ),
    num_tokens=st.integers(1, 24),
    temperature=st.sampled_from([0.0, 0.8]),
    drafter=st.sampled_from(["model", "suffix", "random", "off"]),
    k=st.integers(0, 6),
    abort_after=st.one_of(st.none(), st.none(), st.integers(0, 12)),
    is_next_turn=st.booleans(),
)


def with_history(traffic: list[Arrival]) -> list[Arrival]:
    """Put conversations together, as far as they stay short."""
    done: list[Arrival] = []
    for i, one in enumerate(traffic):
        if one.is_next_turn and done:
            last = done[-1]
            answer = plain_decode(last.prompt, last.num_tokens, last.temperature, i - 1)
            prompt = [*last.prompt, *answer, *one.prompt[:3]]
            if len(prompt) <= MOST_PROMPT:
                one = replace(one, prompt=prompt, step=max(one.step, last.step + 1))
        done.append(one)
    return done


@settings(max_examples=80, deadline=None)
@given(
    st.lists(arrivals, min_size=1, max_size=9),
    st.integers(16, 40),
    st.integers(1, 5),
    st.integers(0, 30),
    st.integers(1, 16),
    st.sampled_from([0.0, 0.5, 3.0]),
    st.sampled_from([0.0, 3.0]),
    st.integers(0, 2**32 - 1),
)
def test_every_request_ends_with_its_own_answer(
    traffic: list[Arrival],
    num_blocks: int,
    max_num_seqs: int,
    more_rows: int,
    chunk: int,
    ratio: float,
    overtaking_s: float,
    seed: int,
) -> None:
    traffic = with_history(traffic)
    rng, clock = np.random.default_rng(seed), ManualClock()
    limits = SchedulerLimits(max_num_seqs, max_num_seqs + more_rows, chunk, ratio, overtaking_s)
    engine, drafter = shared_engine(
        LOGITS,
        V,
        spoiled(LOGITS),
        num_blocks=num_blocks,
        drafters={
            "suffix": SuffixDrafter(1),
            "random": ScriptedDrafter(lambda asked: rng.integers(0, V, asked.draft_length).tolist()),
        },
        draft_options={"prefill_chunk": 8},
        limits=limits,
        clock=clock,
    )
    results: dict[str, GenerationResult] = {}
    aborts = {
        f"r{i}": one.step + one.abort_after for i, one in enumerate(traffic) if one.abort_after is not None
    }
    for step in range(NUM_STEPS):
        for i, one in enumerate(traffic):
            if one.step == step:
                params = SamplingParams(max_tokens=one.num_tokens, temperature=one.temperature)
                speculation = OFF if one.drafter == "off" else speculate(one.k, one.drafter)
                engine.submit(request(one.prompt, params, speculation, seed=i, request_id=f"r{i}"))
            if aborts.get(f"r{i}") == step:
                engine.abort(f"r{i}")
        results |= {chunk.request_id: chunk.result for chunk in engine.step() if chunk.result is not None}
        clock.advance(0.5)
        check_pool(engine.pool)
        assert sum(engine._model.rows[-1:]) <= limits.max_num_batched_tokens
        if len(results) == len(traffic):
            break
    assert not engine.has_work
    for i, one in enumerate(traffic):
        expected, result = plain_decode(one.prompt, one.num_tokens, one.temperature, i), results[f"r{i}"]
        if result.finish_reason is FinishReason.ABORT:
            assert f"r{i}" in aborts
            assert list(result.token_ids) == expected[: len(result.token_ids)]
        else:
            assert list(result.token_ids) == expected
    assert engine.pool.num_used == drafter.num_held_blocks == 0
    assert engine.pool.num_free == num_blocks
