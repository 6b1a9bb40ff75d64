"""Coupled verification: whatever is drafted, the output is that of plain decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import GenerationError
from paceline.records import Verification
from paceline.sampling import coupled
from paceline.sampling.distribution import Distribution
from paceline.sampling.noise import gumbel
from paceline.sampling.processors import process
from tests.sampling.scripted import constant, generate, markov, state_for, step

VOCAB = 7

PARAMS = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0])},
    optional={
        "top_k": st.integers(1, 4),
        "top_p": st.sampled_from([0.3, 0.8, 0.99]),
        "min_p": st.sampled_from([0.05, 0.5]),
        "repetition_penalty": st.sampled_from([0.7, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 1.5]),
        "frequency_penalty": st.sampled_from([-0.5, 0.6]),
        "logit_bias": st.dictionaries(
            st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 2.0]), max_size=3
        ),
        "min_tokens": st.integers(0, 9),
        "stop_token_ids": st.lists(st.integers(0, VOCAB - 1), max_size=2).map(tuple),
    },
)


@settings(max_examples=300, deadline=None)
@given(
    params=PARAMS,
    seed=st.integers(0, 2**64 - 1),
    table_seed=st.integers(0, 50),
    guesses=st.lists(
        st.lists(st.one_of(st.none(), st.integers(0, VOCAB - 1)), max_size=6), min_size=1, max_size=12
    ),
)
def test_any_drafts_give_the_tokens_of_plain_decoding(
    params: dict[str, Any], seed: int, table_seed: int, guesses: list[list[int | None]]
) -> None:
    """None in a guess stands for the right token, so that long acceptances come up too."""
    target = markov(np.random.default_rng(table_seed).normal(0, 2, (VOCAB, VOCAB)))
    plain = generate(target, state_for(VOCAB, seed=seed, prompt=[2, 3], **params), 24)
    turns = iter(guesses * 24)

    def draft(state: Any) -> list[int]:
        done = state.num_output_tokens
        truth = plain[done : done + 6]
        return [t if g is None else g for g, t in zip(next(turns), truth, strict=False)]

    assert generate(target, state_for(VOCAB, seed=seed, prompt=[2, 3], **params), 24, draft) == plain


@pytest.mark.parametrize(
    ("drafts", "emitted", "num_accepted"),
    [
        ([], [1], 0),
        ([1], [1, 2], 1),
        ([0], [1], 0),
        ([1, 2, 0], [1, 2, 0, 1], 3),
        ([1, 0, 0], [1, 2], 1),
        ([0, 2, 0], [1], 0),
    ],
)
def test_greedy_cycle(drafts: list[int], emitted: list[int], num_accepted: int) -> None:
    """The target goes 0, 1, 2, 0, ...; its first token after nothing is 1."""
    verdict = step(markov(np.roll(np.eye(3), 1, axis=1)), state_for(3), drafts)
    assert list(verdict.token_ids) == emitted
    assert verdict.num_accepted == num_accepted
    assert verdict.logprobs is None


def test_sample_is_the_arg_max_of_log_probability_plus_noise() -> None:
    ids = np.array([3, 5, 9])
    log_probs = np.log([0.2, 0.5, 0.3])
    expected = ids[np.argmax(log_probs + gumbel(11, 4, ids))]
    assert coupled.sample(Distribution(ids, log_probs), 11, 4) == expected


def test_a_bad_row_inside_a_block_fails_where_plain_decoding_fails() -> None:
    def target(output: Any) -> Any:
        return np.full(3, np.nan) if len(output) == 2 else np.array([0.0, 1.0, 0.0])

    for verification in Verification:
        state = state_for(3)
        verdict = step(target, state, [1, 1, 1], verification=verification)
        assert verdict.token_ids == (1, 1)
        assert verdict.num_accepted == 1
        state.append(verdict.token_ids)
        with pytest.raises(GenerationError, match="a logit of nan at output position 2"):
            step(target, state, [1], verification=verification)


def test_one_row_too_few_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match=r"logits of shape \(1, 2\) for 1 drafts"):
        coupled.verify(np.zeros((1, 2), np.float32), [0], state_for(2))


def test_same_noise_on_the_draft_side_agrees_more_often_than_independent_samples() -> None:
    """Chance of agreement: at least (1 - d) / (1 + d) coupled (Daliri et al.), sum of p q independent."""
    rng = np.random.default_rng(0)
    num_coupled = num_independent = 0.0
    for trial in range(400):
        logits = rng.normal(0, 1.5, 30)
        p = process(logits, state_for(30, temperature=1.0))
        q = process(logits + rng.normal(0, 0.7, 30), state_for(30, temperature=1.0))
        hits = sum(coupled.sample(p, trial, i) == coupled.sample(q, trial, i) for i in range(10))
        distance = 0.5 * np.abs(p.probs - q.probs).sum()
        num_coupled += hits / 10 - (1 - distance) / (1 + distance)
        num_independent += hits / 10 - float(p.probs @ q.probs)
    assert num_coupled / 400 > -0.02  # four standard errors of the mean of 4000 hits, at most
    assert num_independent / 400 > 0.3


def test_constant_logits_are_read_only() -> None:
    row = np.array([0.5, 1.0, -1.0], dtype=np.float32)
    row.flags.writeable = False
    state = state_for(3, temperature=1.0, frequency_penalty=1.0, logit_bias={0: 1.0}, repetition_penalty=2.0)
    first = step(constant(row), state, [0, 1, 2])
    assert step(constant(row), state, [0, 1, 2]) == first
    assert state.num_output_tokens == 0
