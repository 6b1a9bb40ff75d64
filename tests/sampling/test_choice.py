"""Choosing natively is choosing from the distribution that `process` gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import GenerationError
from paceline.kernels.native import native
from paceline.records import SamplingParams
from paceline.sampling.choice import choose, choose_with_confidence, sample
from paceline.sampling.processors import process
from paceline.sampling.state import SamplingState

V = 40


def state_of(params: SamplingParams, seed: int, output: list[int]) -> SamplingState:
    state = SamplingState(params, seed, [1, 2], frozenset({3}), vocab_size=V + 4, num_real_tokens=V)
    state.append(output)
    return state


def test_native_code_was_built() -> None:
    assert native is not None


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    st.sampled_from([0, 1, 5, 100]),
    st.sampled_from([0.3, 0.95, 1.0]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.6]),
    st.lists(st.integers(0, V - 1), max_size=6),
    st.integers(0, 4),
)
def test_choice_is_a_sample_of_the_distribution(
    seed: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    output: list[int],
    num_drafted: int,
) -> None:
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        frequency_penalty=penalty,
        repetition_penalty=1.0 + penalty,
        logit_bias={7: 2.0},
        min_tokens=3,
    )
    state = state_of(params, seed, output)
    drafted = list(range(num_drafted))
    row = np.random.default_rng(seed % 1000).normal(scale=2, size=V + 4).astype(np.float32)
    row[V:] = 100.0  # padding rows, which may hold anything
    distribution = process(row, state, drafted)
    index = state.num_output_tokens + num_drafted
    assert choose(row, state, drafted) == sample(distribution, state.seed, index)
    token_id, confidence = choose_with_confidence(row, state, drafted)
    assert token_id == choose(row, state, drafted)
    assert 0 < confidence <= 1


def test_confidence_is_the_rows_own_probability() -> None:
    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    for params, expected in [
        (SamplingParams(), 0.5),
        (SamplingParams(temperature=1.0, top_k=1), 0.5),
        (SamplingParams(temperature=0.5, top_k=1), 0.25 / 0.38),
    ]:
        state = SamplingState(params, 0, [], frozenset(), vocab_size=3)
        assert choose_with_confidence(row, state) == (0, pytest.approx(expected, rel=1e-5))
    tiny = SamplingState(SamplingParams(temperature=1e-300), 0, [], frozenset(), vocab_size=3)
    assert choose_with_confidence(row, tiny) == (0, pytest.approx(1.0))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_rows_are_refused(value: float, temperature: float) -> None:
    row = np.zeros(V, np.float32)
    row[5] = value
    with pytest.raises(GenerationError):
        choose(row, state_of(SamplingParams(temperature=temperature), 0, []))
