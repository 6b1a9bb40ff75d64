"""The joint distribution of several output tokens by chi-square against the exact one, and planted faults.

Target and drafter are two different Markov chains. Every trial decodes NUM_TOKENS tokens with the trial's
number as seed; each cell is one whole output. All numbers follow from the seeds, so a test always gives one
answer; had the seeds been drawn afresh, a right verifier would fail a test in one run out of 10,000
(FALSE_ALARM). Each planted fault must fall below one in a million (CERTAIN).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paceline.records import SamplingParams, Verification
from paceline.sampling import coupled, rejection
from paceline.sampling.distribution import Distribution
from paceline.sampling.noise import Purpose, uniform
from paceline.sampling.processors import process
from paceline.sampling.state import SamplingState
from tests.sampling.scripted import Target, markov, state_for, step

VOCAB = 4
NUM_TOKENS = 3
NUM_TRIALS = 3000
FALSE_ALARM = 1e-4
CERTAIN = 1e-6

Proposal = tuple[list[int], list[Distribution] | None]
Drafter = Callable[[SamplingState, int], Proposal]

TARGET = markov(np.random.default_rng(1).normal(0, 1.2, (VOCAB, VOCAB)))
DRAFT = markov(np.random.default_rng(2).normal(0, 1.2, (VOCAB, VOCAB)))

PARAMS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.85},
    {"temperature": 1.5, "top_k": 3, "min_p": 0.1},
    {
        "temperature": 1.0,
        "frequency_penalty": 1.0,
        "logit_bias": {2: 1.0},
        "stop_token_ids": (1,),
        "min_tokens": 2,
    },
]


def sampled_drafts(state: SamplingState, length: int) -> Proposal:
    """Drafts from the draft chain under the request's own parameters."""
    drafts: list[int] = []
    sampled_from: list[Distribution] = []
    for _ in range(length):
        q = process(DRAFT([*state.output_token_ids, *drafts]), state, drafts)
        index = state.num_output_tokens + len(drafts)
        drafts.append(rejection.draft_sample(q, state.seed, index))
        sampled_from.append(q)
    return drafts, sampled_from


def looked_up_drafts(state: SamplingState, length: int) -> Proposal:
    """The draft chain's arg-max: not drawn, so one-hot."""
    drafts: list[int] = []
    for _ in range(length):
        drafts.append(int(DRAFT([*state.output_token_ids, *drafts]).argmax()))
    return drafts, None


def coupled_drafts(state: SamplingState, length: int) -> Proposal:
    """The draft chain's samples with the target's own noise: not drawn from q in rejection's sense."""
    drafts: list[int] = []
    for _ in range(length):
        q = process(DRAFT([*state.output_token_ids, *drafts]), state, drafts)
        drafts.append(coupled.sample(q, state.seed, state.num_output_tokens + len(drafts)))
    return drafts, None


def p_value(verification: Verification, draft: Drafter, params: dict[str, Any], draft_length: int) -> float:
    counts: Counter[tuple[int, ...]] = Counter()
    sampling = SamplingParams(**params)
    for seed in range(NUM_TRIALS):
        state = SamplingState(sampling, seed, (), (), VOCAB)
        while state.num_output_tokens < NUM_TOKENS:
            drafts, sampled_from = draft(state, draft_length)
            state.append(step(TARGET, state, drafts, sampled_from, verification).token_ids)
        counts[tuple(state.output_token_ids[:NUM_TOKENS])] += 1
    return chi_square(counts, exact(TARGET, params))


def exact(target: Target, params: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """Chance of each whole output: the product of the target's processed chances along it."""
    state = state_for(VOCAB, **params)
    chances: dict[tuple[int, ...], float] = {}
    for output in itertools.product(range(VOCAB), repeat=NUM_TOKENS):
        steps = (process(target(output[:i]), state, output[:i]).prob_of(output[i]) for i in range(NUM_TOKENS))
        chances[output] = float(np.prod(list(steps)))
    return chances


def chi_square(counts: Counter[tuple[int, ...]], chances: dict[tuple[int, ...], float]) -> float:
    """P-value; outputs expected fewer than five times make up one cell, and an impossible one gives 0."""
    if any(chances[output] == 0.0 for output in counts):
        return 0.0
    frequent = [output for output in chances if chances[output] * NUM_TRIALS >= 5]
    observed = np.array([counts[output] for output in frequent], dtype=float)
    expected = np.array([chances[output] for output in frequent]) * NUM_TRIALS
    rest = NUM_TRIALS - expected.sum()
    if rest > 1e-6:
        observed, expected = np.append(observed, NUM_TRIALS - observed.sum()), np.append(expected, rest)
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.mark.parametrize("draft_length", [1, 2])
@pytest.mark.parametrize("params", PARAMS)
def test_rejection_with_sampled_drafts(params: dict[str, Any], draft_length: int) -> None:
    assert p_value(Verification.REJECTION, sampled_drafts, params, draft_length) > FALSE_ALARM


@pytest.mark.parametrize("draft", [looked_up_drafts, coupled_drafts])
@pytest.mark.parametrize("params", PARAMS[:2])
def test_rejection_with_deterministic_drafts(draft: Drafter, params: dict[str, Any]) -> None:
    assert p_value(Verification.REJECTION, draft, params, 2) > FALSE_ALARM


@pytest.mark.parametrize("params", PARAMS)
def test_coupled(params: dict[str, Any]) -> None:
    assert p_value(Verification.COUPLED, coupled_drafts, params, 2) > FALSE_ALARM


def test_planted_fault_confidence_in_the_ratio() -> None:
    """An arg-max draft judged by the softmax that its drafter claims (B6)."""

    def claiming_drafts(state: SamplingState, length: int) -> Proposal:
        drafts, _ = looked_up_drafts(state, length)
        outputs = [[*state.output_token_ids, *drafts[:i]] for i in range(length)]
        return drafts, [process(DRAFT(output), state, drafts[:i]) for i, output in enumerate(outputs)]

    assert p_value(Verification.REJECTION, claiming_drafts, PARAMS[0], 2) < CERTAIN


def test_planted_fault_correction_from_p(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "residual", lambda p, q: p)
    assert p_value(Verification.REJECTION, sampled_drafts, PARAMS[0], 2) < CERTAIN


def test_planted_fault_residual_cut_off_before_it_is_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing to a sum of 1 goes to the last token, as a search in a cumulative sum would have it."""

    def unnormalised(p: Distribution, q: Distribution) -> Distribution:
        excess = np.maximum(p.probs - q.probs_at(p.token_ids), 1e-300)
        excess[-1] += 1.0 - excess.sum()
        return Distribution(p.token_ids, np.log(excess))

    monkeypatch.setattr(rejection, "residual", unnormalised)
    assert p_value(Verification.REJECTION, sampled_drafts, PARAMS[0], 2) < CERTAIN


def test_planted_fault_accept_number_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual is drawn with the number that has just rejected the draft, so with a high one."""

    def by_accept_number(distribution: Distribution, seed: int, output_index: int, *purpose: int) -> int:
        if purpose[0] != Purpose.CORRECTION:
            return coupled.sample(distribution, seed, output_index, *purpose)
        u = uniform(seed, output_index, Purpose.ACCEPT)
        return int(distribution.token_ids[np.searchsorted(np.cumsum(distribution.probs), u)])

    monkeypatch.setattr(rejection, "sample", by_accept_number)
    assert p_value(Verification.REJECTION, sampled_drafts, PARAMS[0], 2) < CERTAIN


def test_planted_fault_processors_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_the_first_position(logits: Any, state: SamplingState, drafted: Sequence[int] = ()) -> Distribution:
        return process(logits, state)

    def choice(logits: Any, state: SamplingState, drafted: Sequence[int] = ()) -> int:
        return coupled.sample(process(logits, state), state.seed, state.num_output_tokens + len(drafted))

    monkeypatch.setattr(rejection, "process", of_the_first_position)
    monkeypatch.setattr(coupled, "choose", choice)
    assert p_value(Verification.REJECTION, sampled_drafts, PARAMS[3], 2) < CERTAIN
    assert p_value(Verification.COUPLED, coupled_drafts, PARAMS[3], 2) < CERTAIN
