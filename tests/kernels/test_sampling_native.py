"""Native sampling passes against `paceline.sampling`, which says what a token is.

Bounds: noise within 4 units in the last place of the larger of 1 and itself (NumPy's log against ours); sums
of exponentials within 1e-13 of themselves. Sets and tokens are equal, ties included; by those bounds they may
differ where a nucleus' goal or two keys agree to 1e-13, which no case here comes near by chance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paceline.kernels import _native, sampling_kernels
from paceline.kernels.sampling_kernels import Draw, Truncation, arg_max, log_sum_exp, rough_exp_sum, top_n
from paceline.sampling import coupled
from paceline.sampling.logprobs import position_logprobs
from paceline.sampling.noise import Purpose, gumbel, philox4x32
from paceline.sampling.processors import process
from sampling.scripted import state_for

SIZES = [1, 2, 7, 8, 9, 15, 16, 17, 100, 1023, 1024, 1025, 5000]
DTYPES = [np.float32, np.float64]


def random_logits(size: int, seed: int, dtype: Any = np.float32, spread: float = 3.0) -> np.ndarray:
    """Draw logits of which some are equal and some minus infinity, as masks and rounding leave them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, size).astype(dtype)
    logits[rng.random(size) < 0.3] = spread / 2
    logits[rng.random(size) < 0.1] = -np.inf
    logits[rng.integers(size)] = spread * 2
    return logits


def test_philox_words() -> None:
    """Known-answer vectors of Random123, and random counters against the reference."""
    ones = 0xFFFFFFFF
    assert _native.philox(0, 0, 0, 0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert _native.philox(ones, ones, ones, ones, 2**64 - 1) == (
        0x408F276D,
        0x41C83B0E,
        0xA20BC7C6,
        0x6D5451FD,
    )
    rng = np.random.default_rng(0)
    for _ in range(50):
        c0, c1, c2, c3, k0, k1 = (int(word) for word in rng.integers(0, 2**32, 6))
        assert _native.philox(c0, c1, c2, c3, k0 | k1 << 32) == philox4x32((c0, c1, c2, c3), (k0, k1))


@pytest.mark.parametrize("purpose", [Purpose.COUPLED, Purpose.CORRECTION])
def test_gumbel_noise(purpose: Purpose) -> None:
    ids = np.arange(200_000)
    expected = gumbel(2**63 + 12345, 77, ids, purpose, salt=9)
    noise = _native.gumbel(2**63 + 12345, 77, ids, purpose, 9)
    assert (np.abs(noise - expected) <= 4 * np.spacing(np.maximum(1.0, np.abs(expected)))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_arg_max(isa: str, size: int, dtype: Any) -> None:
    for seed in range(20):
        logits = random_logits(size, seed, dtype)
        assert arg_max(logits) == logits.argmax()
        logits[np.random.default_rng(seed).integers(0, size, 2)] = logits.max()
        assert arg_max(logits) == logits.argmax()
        logits[np.random.default_rng(seed).integers(0, size, 2)] = np.nan
        assert arg_max(logits) == logits.argmax()
    assert arg_max(np.full(size, -np.inf, dtype)) == 0
    zeros = np.zeros(size, dtype)
    zeros[: size // 2] = -0.0  # equal to 0, so the first one wins
    assert arg_max(zeros) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_log_sum_exp_and_top_n(isa: str, size: int, dtype: Any) -> None:
    for seed, spread in enumerate((0.1, 3.0, 100.0)):
        logits = random_logits(size, seed, dtype, spread)
        log_sum = log_sum_exp(logits)
        for count in (0, 1, 5, 20, size):
            expected = position_logprobs(logits, int(logits.argmax()), count)
            ids, values = top_n(logits, count)
            assert ids.tolist() == [token for token, _ in expected.top]
            assert values.tolist() == logits[ids].astype(np.float64).tolist()
            np.testing.assert_allclose(values - log_sum, [p for _, p in expected.top], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [*SIZES, 100_000])
def test_rough_exp_sum_is_within_its_bound(isa: str, size: int, dtype: Any) -> None:
    for seed, spread in enumerate((0.02, 3.0, 30.0)):
        logits = random_logits(size, seed, dtype, spread)
        for temperature in (0.3, 1.0, 2.5):
            for value in (float(logits.max()), float(logits.max()) - 5.0):
                exact = np.exp((logits.astype(np.float64) - value) / temperature).sum()
                assert rough_exp_sum(logits, value, temperature) == pytest.approx(exact, rel=2e-5)


def test_rough_exp_sum_at_the_ends_of_its_range() -> None:
    logits = np.array([0.0, 1e30, -np.inf], dtype=np.float32)
    assert rough_exp_sum(logits, 1e30, 1e-30) == 1.0
    assert rough_exp_sum(logits, 0.0, 1.0) > 1e38
    for temperature in (0.0, 1e-31, 1e31, np.nan):
        with pytest.raises(ValueError, match="temperature"):
            rough_exp_sum(logits, 0.0, temperature)


def test_a_nucleus_whose_goal_is_too_close_to_call_is_settled_exactly(isa: str) -> None:
    # Equal shares of which a sum hits the goal exactly, or misses it by less than rough sums can tell.
    for size in (1000, 4096):
        logits = np.zeros(size, np.float32)
        for top_p in (0.25, 0.25 * (1 + 1e-9), 0.5, 0.999999):
            expected = process(logits, state_for(size, temperature=0.7, top_p=top_p))
            np.testing.assert_array_equal(select(logits, 0.7, {"top_p": top_p})[0], expected.token_ids)


TRUNCATIONS = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 700},
    {"top_p": 0.95},
    {"top_p": 0.5},
    {"top_p": 0.999999},
    {"top_p": 1e-9},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
    {"top_k": 900, "top_p": 0.3},
]


def select(logits: np.ndarray, temperature: float, params: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    return sampling_kernels.select(logits, temperature, Truncation(**params))


def sample(logits: np.ndarray, temperature: float, params: dict[str, Any], seed: int, index: int) -> int:
    return sampling_kernels.sample(logits, temperature, Truncation(**params), Draw(seed, index))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("params", TRUNCATIONS, ids=str)
def test_select_keeps_what_the_processors_keep(isa: str, params: dict[str, Any], dtype: Any) -> None:
    for seed, size in enumerate((1, 7, 100, 1025, 5000)):
        for temperature in (0.3, 1.0, 2.5):
            for spread in (0.02, 3.0, 30.0):
                logits = random_logits(size, seed, dtype, spread)
                expected = process(logits, state_for(size, temperature=temperature, **params))
                ids, scores = select(logits, temperature, params)
                np.testing.assert_array_equal(ids, expected.token_ids)
                np.testing.assert_array_equal(
                    scores, (logits[ids].astype(np.float64) - np.float64(logits.max())) / temperature
                )


def test_ties_at_the_cut_go_to_the_lowest_ids(isa: str) -> None:
    logits = np.zeros(3000, np.float32)
    assert select(logits, 0.7, {"top_k": 10})[0].tolist() == list(range(10))
    assert select(logits, 0.7, {"top_p": 0.5})[0].tolist() == list(range(1500))
    logits[::2] = -1.0
    assert select(logits, 1.0, {"top_k": 3})[0].tolist() == [1, 3, 5]
    assert len(select(logits, 1.0, {"min_p": float(np.exp(-1.0))})[0]) == 3000
    logits[:] = np.linspace(-5, 5, 3000)  # rising: the worst order for a running threshold
    assert select(logits, 1.0, {"top_k": 5})[0].tolist() == list(range(2995, 3000))


def test_numbers_at_the_edge(isa: str) -> None:
    logits = np.array([3.0e38, -3.0e38, -np.inf, 2.9e38] * 9, np.float32)
    for temperature in (1e-310, 1e-30, 1.0, 1e308):
        for params in TRUNCATIONS:
            with np.errstate(over="ignore"):
                expected = process(logits, state_for(36, temperature=temperature, **params))
            np.testing.assert_array_equal(select(logits, temperature, params)[0], expected.token_ids)
            for seed in range(5):
                expected_token = coupled.sample(expected, seed, 0)
                assert sample(logits, temperature, params, seed, 0) == expected_token


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("params", TRUNCATIONS, ids=str)
def test_sample_is_the_coupled_sample(isa: str, params: dict[str, Any], dtype: Any) -> None:
    for seed, size in enumerate((1, 15, 16, 130, 3000)):
        for temperature in (0.0, 0.2, 0.7, 1.0, 3.0):
            logits = random_logits(size, seed, dtype)
            distribution = process(logits, state_for(size, temperature=temperature, **params))
            for index in range(12):
                token = sample(logits, temperature, params, 2**64 - 1 - seed, index)
                assert token == coupled.sample(distribution, 2**64 - 1 - seed, index)


def test_sample_over_a_whole_vocabulary(isa: str) -> None:
    for seed in range(6):
        logits = np.random.default_rng(seed).normal(0, 2.5, 151_936).astype(np.float32)
        for temperature in (0.7, 1.5):
            distribution = process(logits, state_for(len(logits), temperature=temperature))
            assert sample(logits, temperature, {}, seed, seed) == coupled.sample(distribution, seed, seed)
            for params in ({"top_p": 0.95}, {"top_k": 40}, {"min_p": 0.1}):
                kept = process(logits, state_for(len(logits), temperature=temperature, **params))
                np.testing.assert_array_equal(select(logits, temperature, params)[0], kept.token_ids)


@settings(max_examples=300, deadline=None)
@given(
    logits=hnp.arrays(
        np.float32,
        st.integers(1, 60),
        elements=st.one_of(st.sampled_from([-np.inf, 0.0, 1.0, 1.5]), st.floats(-50, 50, width=32)),
    ).filter(lambda x: np.isfinite(x.max())),
    temperature=st.floats(0.05, 5.0),
    top_k=st.integers(0, 70),
    top_p=st.one_of(st.just(1.0), st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9, 0.99])),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
    seed=st.integers(0, 2**64 - 1),
    index=st.integers(0, 2**32 - 1),
)
def test_any_row(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, index: int
) -> None:
    params = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    expected = process(logits, state_for(len(logits), temperature=temperature, **params))
    np.testing.assert_array_equal(select(logits, temperature, params)[0], expected.token_ids)
    assert sample(logits, temperature, params, seed, index) == coupled.sample(expected, seed, index)


def test_every_instruction_set_gives_the_same_tokens_and_keys() -> None:
    logits = np.random.default_rng(3).normal(0, 2.0, 20_000).astype(np.float32)
    tokens = {}
    for name in _native.isas():
        _native.set_isa(name)
        tokens[name] = [sample(logits, 1.3, {}, 5, index) for index in range(200)]
    _native.set_isa(_native.isas()[-1])
    assert len(set(tokens["portable"])) > 100
    assert all(found == tokens["portable"] for found in tokens.values())


def test_rows_without_a_peak_are_refused() -> None:
    for row in (np.array([1.0, np.nan]), np.array([np.inf, 1.0]), np.array([-np.inf])):
        for logits in (row, row.astype(np.float32)):
            with pytest.raises(ValueError, match="greatest logit is not finite"):
                sample(logits, 1.0, {}, 1, 0)
            with pytest.raises(ValueError, match="greatest logit is not finite"):
                select(logits, 1.0, {})
            with pytest.raises(ValueError, match="greatest logit is not finite"):
                log_sum_exp(logits)
    with pytest.raises(ValueError, match="row of no logits"):
        arg_max(np.zeros(0, np.float32))
    with pytest.raises(ValueError, match="temperature above 0"):
        select(np.zeros(3, np.float32), 0.0, {})
    with pytest.raises(TypeError):
        arg_max(np.zeros(3, np.int32))
    with pytest.raises(TypeError):
        arg_max(np.zeros(6, np.float32)[::2])
