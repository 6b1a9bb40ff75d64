"""Log-probabilities: the target's own, one for each emitted token, drafted or not."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.records import Verification
from paceline.sampling.logprobs import position_logprobs
from tests.sampling.scripted import generate, markov, state_for, step


def test_table() -> None:
    entry = position_logprobs(np.log(np.array([0.1, 0.4, 0.1, 0.4, 0.0001, 0.0], np.float32) + 1e-30), 2, 3)
    assert entry.token_id == 2
    assert entry.logprob == pytest.approx(np.log(0.1 / 1.0001))
    assert [token for token, _ in entry.top] == [1, 3, 0]
    assert [value for _, value in entry.top] == pytest.approx(np.log(np.array([0.4, 0.4, 0.1]) / 1.0001))


def test_tokens_of_no_chance_are_not_listed() -> None:
    assert [token for token, _ in position_logprobs(np.array([0.0, -np.inf, 1.0]), 0, 3).top] == [2, 0]


def test_none_asked_for_and_only_the_chosen_one() -> None:
    target = markov(np.zeros((3, 3)))
    assert step(target, state_for(3)).logprobs is None
    (entry,) = step(target, state_for(3, logprobs=0)).logprobs or ()
    assert entry.top == ()
    assert entry.logprob == pytest.approx(np.log(1 / 3))


def test_padding_rows_have_no_share() -> None:
    (entry,) = step(markov([[0.0, 0.0, 9.0, 9.0]]), state_for(4, num_real=2, logprobs=3)).logprobs or ()
    assert dict(entry.top) == pytest.approx({0: np.log(0.5), 1: np.log(0.5)})


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafted_tokens_have_the_log_probabilities_of_plain_decoding(
    temperature: float, verification: Verification
) -> None:
    """B13: first 2 of 4 drafts right, so that accepted, corrected and bonus tokens all occur."""
    target = markov(np.random.default_rng(5).normal(0, 1, (6, 6)))
    params = {"temperature": temperature, "logprobs": 3, "top_p": 0.9, "presence_penalty": 0.5}
    plain = generate(target, state_for(6, **params), 40)
    state = state_for(6, **params)
    kinds = set()
    while state.num_output_tokens < 40:
        done = state.num_output_tokens
        drafts = [*plain[done : done + 2], *[(token + 1) % 6 for token in plain[done + 2 : done + 4]]]
        drafts = drafts[: 2 if done % 3 else 4]
        verdict = step(target, state, drafts, verification=verification)
        assert verdict.logprobs is not None
        assert len(verdict.logprobs) == len(verdict.token_ids)
        kinds.add((verdict.num_accepted > 0, verdict.num_accepted == len(drafts)))
        prefix = list(state.output_token_ids)
        for token, entry in zip(verdict.token_ids, verdict.logprobs, strict=True):
            expected = position_logprobs(target(prefix), token, 3)
            assert entry == expected
            assert entry.logprob < 0
            assert len(entry.top) == 3
            prefix.append(token)
        state.append(verdict.token_ids)
    assert {(True, False), (True, True)} <= kinds
