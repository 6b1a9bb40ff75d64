"""Processors: small tables, a full-sort reference, and the probes for parameters that engines dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import GenerationError
from paceline.records import SamplingParams, Verification
from paceline.sampling.distribution import Distribution
from paceline.sampling.noise import NOISE_SPAN
from paceline.sampling.processors import process
from tests.sampling.scripted import constant, generate, state_for, step


def kept(distribution: Distribution) -> dict[int, float]:
    return dict(zip(distribution.token_ids.tolist(), distribution.probs.tolist(), strict=True))


def process_probs(probs: Sequence[float], drafted: Sequence[int] = (), **params: Any) -> dict[int, float]:
    params = {"temperature": 1.0, **params}
    return kept(process(np.log(probs), state_for(len(probs), **params), drafted))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3}),
        ({"temperature": 0.0}, {1: 1.0}),
        ({"temperature": 0.5}, {0: 1 / 30, 1: 16 / 30, 2: 4 / 30, 3: 9 / 30}),
        ({"top_k": 2}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_k": 9}, {0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3}),
        ({"top_p": 0.6}, {1: 4 / 7, 3: 3 / 7}),
        ({"top_p": 0.8}, {1: 4 / 9, 2: 2 / 9, 3: 3 / 9}),
        ({"min_p": 0.6}, {1: 4 / 7, 3: 3 / 7}),
        ({"min_p": 1.0}, {1: 1.0}),
        # Token 1 has 4/7 = 0.571 of what top-k leaves, though 0.4 of all.
        ({"top_k": 2, "top_p": 0.56}, {1: 1.0}),
        ({"top_k": 2, "top_p": 0.58}, {1: 4 / 7, 3: 3 / 7}),
        ({"logit_bias": {0: 100.0}, "temperature": 0.0}, {0: 1.0}),
        ({"logit_bias": {1: np.log(0.5)}}, {0: 0.125, 1: 0.25, 2: 0.25, 3: 0.375}),
        ({"presence_penalty": np.log(2), "drafted": [1, 1]}, {0: 0.125, 1: 0.25, 2: 0.25, 3: 0.375}),
        ({"frequency_penalty": np.log(2), "drafted": [1, 1]}, {0: 1 / 7, 1: 1 / 7, 2: 2 / 7, 3: 3 / 7}),
    ],
)
def test_table(params: dict[str, Any], expected: dict[int, float]) -> None:
    assert process_probs([0.1, 0.4, 0.2, 0.3], **params) == pytest.approx(expected)


def test_repetition_penalty_takes_the_prompt_and_both_signs() -> None:
    logits = np.array([2.0, -1.0, 0.0, 2.0])
    state = state_for(4, temperature=1.0, repetition_penalty=2.0, prompt=[0, 1, 2])
    expected = np.exp([1.0, -2.0, 0.0, 2.0])
    assert process(logits, state).probs == pytest.approx(expected / expected.sum())


def test_penalties_of_output_take_no_prompt() -> None:
    state = state_for(2, temperature=1.0, frequency_penalty=1.0, presence_penalty=1.0, prompt=[0, 0])
    assert kept(process(np.zeros(2), state)) == pytest.approx({0: 0.5, 1: 0.5})


def test_equal_tokens_go_by_lowest_id() -> None:
    assert kept(process(np.array([1.0, 2.0, 2.0]), state_for(3))) == {1: 1.0}
    assert kept(process(np.zeros(5), state_for(5, temperature=1.0, top_k=2))) == pytest.approx(
        {0: 0.5, 1: 0.5}
    )
    assert kept(process(np.zeros(5), state_for(5, temperature=1.0, top_p=0.3))) == pytest.approx(
        {0: 0.5, 1: 0.5}
    )


def test_end_tokens_are_banned_until_min_tokens() -> None:
    state = state_for(3, end=[2], min_tokens=3)
    logits = np.array([0.0, 1.0, 9.0])
    tops = [int(process(logits, state, [0] * i).token_ids[0]) for i in range(5)]
    assert tops == [1, 1, 1, 2, 2]
    assert kept(process(logits, state_for(3, end=[2], min_tokens=1, temperature=0.01))) == pytest.approx(
        {1: 1.0}
    )


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9, "top_k": 3}])
def test_padding_rows_never_come(params: dict[str, Any]) -> None:
    assert max(process(np.array([0.0, 0.1, 5.0, np.nan]), state_for(4, num_real=2, **params)).token_ids) < 2


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-6, 1.0, 1e300])
def test_extremes_do_not_overflow(temperature: float) -> None:
    big = np.finfo(np.float32).max
    distribution = process(
        np.array([-big, big, big, -np.inf], np.float32), state_for(4, temperature=temperature)
    )
    assert distribution.token_ids[:2].tolist() == ([0, 1] if temperature == 1e300 else [1, 2])
    assert distribution.probs.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0}, {"top_p": 0.9, "temperature": 0.5}, {"presence_penalty": 1.0}]
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.nan])
def test_bad_logits_are_the_error_of_one_request(params: dict[str, Any], bad: float) -> None:
    with pytest.raises(
        GenerationError, match=r"a logit of (nan|inf) at output position 2; expected finite logits"
    ):
        process(np.array([0.0, bad, 1.0], np.float32), state_for(3, **params), [0, 0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_is_an_error_that_names_min_tokens(temperature: float) -> None:
    state = state_for(3, end=[1], min_tokens=1, temperature=temperature)
    with pytest.raises(
        GenerationError, match=r"no token above minus infinity at output position 0.*min_tokens"
    ):
        process(np.array([-np.inf, 3.0, -np.inf]), state)


def test_too_few_logits_are_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="3 logits for a vocabulary of 4 tokens"):
        process(np.zeros(3), state_for(4))


def by_full_sort(logits: np.ndarray, params: SamplingParams) -> dict[int, float]:
    with np.errstate(over="ignore"):
        scores = (logits.astype(np.float64) - float(logits.max())) / params.temperature
    order = np.lexsort((np.arange(len(scores)), -scores))
    order = order[scores[order] >= -NOISE_SPAN]
    order = order[: params.top_k or None]
    if params.top_p < 1:
        reached = np.cumsum(np.exp(scores[order])) >= params.top_p * np.exp(scores[np.sort(order)]).sum()
        order = order[: int(reached.argmax()) + 1] if reached.any() else order
    if params.min_p > 0:
        order = order[scores[order] >= np.log(params.min_p)]
    weights = np.exp(scores[order])
    return dict(zip(order.tolist(), (weights / weights.sum()).tolist(), strict=True))


@settings(max_examples=500, deadline=None)
@given(
    logits=st.lists(
        st.one_of(st.sampled_from([-np.inf, 0.0, 1.0, 1.5, 3e38, -3e38]), st.floats(-40, 40, width=32)),
        min_size=1,
        max_size=50,
    ),
    temperature=st.one_of(st.floats(1e-310, 100), st.sampled_from([1e-300, 1e-3, 0.8])),
    top_k=st.integers(0, 60),
    top_p=st.one_of(st.just(1.0), st.floats(1e-9, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
)
def test_kept_sets_equal_a_full_sort(logits: list[float], **params: Any) -> None:
    array = np.array([0.25, *logits], dtype=np.float32)
    sampling = SamplingParams(**params)
    ours = kept(process(array, state_for(len(array), **params)))
    theirs = by_full_sort(array, sampling)
    assert sorted(ours) == sorted(theirs)
    assert ours == pytest.approx(theirs)


BOTH = pytest.mark.parametrize("verification", list(Verification))


@BOTH
@pytest.mark.parametrize("num_drafts", [0, 1, 4])
@pytest.mark.parametrize(
    ("logits", "params", "text"),
    [
        ([2.0, 1.5, 1.0, -9.0], {"frequency_penalty": 0.6}, "abacbacb"),
        ([2.0, 1.9, 1.0, -9.0], {"repetition_penalty": 1.25}, "abaaaaaa"),
    ],
)
def test_penalties_count_tokens_of_the_same_block(
    logits: list[float], params: dict[str, float], text: str, num_drafts: int, verification: Verification
) -> None:
    """B19: a drafter that always proposes the first token changes nothing."""
    state = state_for(4, prompt=[3], **params)
    tokens = generate(constant(logits), state, 8, lambda state: [0] * num_drafts, verification)
    assert "".join("abc"[token] for token in tokens) == text


@BOTH
def test_min_p_applies_to_drafted_tokens(verification: Verification) -> None:
    """B20 a: the drafter always proposes a token that min-p removes. 0.02 is four standard errors."""
    target = constant(np.log([0.6, 0.3, 0.1]))
    counts = np.zeros(3)
    for seed in range(10_000):
        state = state_for(3, seed=seed, temperature=1.0, min_p=0.4)
        counts[step(target, state, [2], verification=verification).token_ids[0]] += 1
    assert counts[2] == 0
    assert counts[0] / 10_000 == pytest.approx(0.667, abs=0.02)


@BOTH
def test_logit_bias_applies_to_drafted_tokens(verification: Verification) -> None:
    """B20 b and c, with a drafter that follows the unbiased model."""
    target = constant(np.log([0.6, 0.3, 0.1]))
    for params, expected in (({2: 100.0}, {2}), ({0: -100.0}, {1})):
        tokens = generate(target, state_for(3, logit_bias=params), 12, lambda state: [0] * 4, verification)
        assert set(tokens) == expected
    sampled = state_for(3, temperature=1.0, logit_bias={0: -100.0})
    assert set(generate(target, sampled, 200, lambda state: [0] * 4, verification)) == {1, 2}
