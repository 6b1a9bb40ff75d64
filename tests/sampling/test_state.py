"""The state counts what stands, and nothing that was merely drafted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameterError
from paceline.records import SamplingParams
from paceline.sampling.state import check_against_vocabulary
from tests.sampling.scripted import state_for

TOKENS = st.lists(st.integers(0, 60), max_size=60)


@given(prompt=TOKENS, blocks=st.lists(TOKENS, max_size=5), drafted=TOKENS)
def test_counts_equal_counting_afresh(prompt: list[int], blocks: list[list[int]], drafted: list[int]) -> None:
    state = state_for(61, prompt=prompt, frequency_penalty=1.0, repetition_penalty=2.0)
    for block in blocks:
        state.append(block)
        state.output_counts(drafted)
    output = [token for block in blocks for token in block]
    for extra in (drafted, []):
        ids, counts = state.output_counts(extra)
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == Counter(output + extra)
        assert len(ids) == len(set(output + extra))
        assert sorted(state.seen_token_ids(extra).tolist()) == sorted(set(prompt + output + extra))
    assert state.output_token_ids == output
    assert state.num_output_tokens == len(output)


def test_ids_past_the_real_tokens_are_not_counted() -> None:
    state = state_for(8, num_real=6, prompt=[7, 1], frequency_penalty=1.0, repetition_penalty=2.0)
    assert state.seen_token_ids([6, 2, 99, -1]).tolist() == [1, 2]
    assert state.output_counts([6, 2])[0].tolist() == [2]


def test_stop_tokens_count_as_end_tokens() -> None:
    state = state_for(8, end=[5], stop_token_ids=(3,), min_tokens=2)
    assert state.end_token_ids == {3, 5}
    assert state.banned_token_ids(1).tolist() == [3, 5]
    assert state.banned_token_ids(2).tolist() == []


def test_seeds_are_64_bits() -> None:
    assert state_for(2, seed=-1).seed == 2**64 - 1
    assert state_for(2, seed=7).seed == 7


@pytest.mark.parametrize(
    "params", [{"logit_bias": {10: 1.0}}, {"stop_token_ids": (3, 10)}, {"stop_token_ids": (-1,)}]
)
def test_ids_outside_the_vocabulary_are_refused(params: dict) -> None:
    name = next(iter(params))
    with pytest.raises(
        InvalidParameterError, match=rf"token id (10|-1) in {name}; expected token ids from 0 to 9"
    ):
        check_against_vocabulary(SamplingParams(**params), 10)


def test_ids_inside_the_vocabulary_pass() -> None:
    check_against_vocabulary(SamplingParams(logit_bias={0: 1.0, 9: -1.0}, stop_token_ids=(9,)), 10)
