"""Rejection verification: tiny cases by eye, and determinism; its distribution is tested next door."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from paceline.records import Verification
from paceline.sampling import rejection
from paceline.sampling.distribution import Distribution
from paceline.sampling.noise import Purpose, gumbel
from tests.sampling.scripted import markov, state_for, step

REJECTION = Verification.REJECTION


def of(probs: list[float]) -> Distribution:
    ids = np.flatnonzero(probs)
    return Distribution(ids, np.log(np.array(probs)[ids]))


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        ([0.3, 0.5, 0.2], [1.0, 0.0, 0.0], [0.0, 5 / 7, 2 / 7]),
        ([0.3, 0.5, 0.2], [0.6, 0.3, 0.1], [0.0, 2 / 3, 1 / 3]),
        ([0.0, 0.5, 0.5], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]),
        ([0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]),
        ([1.0, 0.0, 0.0], [0.4, 0.6, 0.0], [1.0, 0.0, 0.0]),
        ([0.4, 0.6, 0.0], [0.4, 0.6, 0.0], [0.4, 0.6, 0.0]),
    ],
)
def test_residual(p: list[float], q: list[float], expected: list[float]) -> None:
    """The last case has nothing left: a rejection there is rounding, and p is as good."""
    residual = rejection.residual(of(p), of(q))
    assert [residual.prob_of(token) for token in range(3)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("draft", "u", "stands"),
    [(0, 0.49, True), (0, 0.51, False), (1, 0.999, True), (2, 1e-9, False)],
)
def test_accepts_below_the_ratio(draft: int, u: float, stands: bool) -> None:
    assert rejection.accepts(of([0.3, 0.7, 0.0]), of([0.6, 0.2, 0.2]), draft, u) is stands


@pytest.mark.parametrize(
    ("drafts", "emitted", "num_accepted"),
    [([], [1], 0), ([1], [1, 2], 1), ([0], [1], 0), ([1, 2, 0], [1, 2, 0, 1], 3), ([1, 0, 0], [1, 2], 1)],
)
def test_greedy_cycle(drafts: list[int], emitted: list[int], num_accepted: int) -> None:
    """The target goes 0, 1, 2, 0, ...; greedy targets leave nothing to chance, whatever q was."""
    target = markov(np.roll(np.eye(3), 1, axis=1))
    for sampled_from in (None, [of([0.3, 0.3, 0.4])] * len(drafts)):
        verdict = step(target, state_for(3), drafts, sampled_from, REJECTION)
        assert list(verdict.token_ids) == emitted
        assert verdict.num_accepted == num_accepted


def test_a_certain_cycle_is_never_broken() -> None:
    """B5: A, B, C, A with certainty, drafts wrong at random."""
    target = markov(np.where(np.roll(np.eye(3), 1, axis=1) > 0, 50.0, 0.0))
    rng = np.random.default_rng(0)
    for length in (1, 2, 4):
        state = state_for(3, temperature=1.0)
        while state.num_output_tokens < 300:
            drafts = rng.integers(0, 3, length).tolist()
            state.append(step(target, state, drafts, [of([1 / 3] * 3)] * length, REJECTION).token_ids)
        assert state.output_token_ids[:300] == [1, 2, 0] * 100


def test_claimed_confidences_are_never_read() -> None:
    """B6: token 0 is always proposed, whatever softmax the drafter claims. False alarm 1e-3 by chi-square."""
    rows = np.log(np.array([[0.3, 0.5, 0.2]] * 2, np.float32))
    state = state_for(3, temperature=1.0)
    counts, num_accepted, num_draws = np.zeros(3), 0, 100_000
    for state.seed in range(num_draws):
        verdict = rejection.verify(rows, [0], None, state)
        counts[verdict.token_ids[0]] += 1
        num_accepted += verdict.num_accepted
    assert num_accepted / num_draws == pytest.approx(0.3, abs=0.005)
    assert stats.chisquare(counts, num_draws * np.array([0.3, 0.5, 0.2])).pvalue > 1e-3


def test_one_distribution_for_each_draft_is_asked_for() -> None:
    for sampled_from in ([], [of([1.0, 0.0])] * 2):
        with pytest.raises(ValueError, match=r"\d distributions for 1 drafts; one each was expected"):
            rejection.verify(np.zeros((2, 2), np.float32), [0], sampled_from, state_for(2))


def test_a_seeded_request_does_not_depend_on_what_else_was_verified() -> None:
    """B16: alone, among others, and after others; another seed gives another text."""
    target = markov(np.random.default_rng(1).normal(0, 1, (16, 16)))

    def run(seed: int, num_neighbours: int) -> list[int]:
        state, neighbours = state_for(16, seed=seed, temperature=2.0), []
        for turn in range(30):
            neighbours = [state_for(16, seed=1000 + i, temperature=2.0) for i in range(num_neighbours)]
            for other in neighbours:
                step(target, other, [3] * (turn % 3), None, REJECTION)
            q = of([1 / 16] * 16)
            drafts = [rejection.draft_sample(q, state.seed, state.num_output_tokens)] * (turn % 2)
            state.append(step(target, state, drafts, [q] * len(drafts), REJECTION).token_ids)
        return list(state.output_token_ids)

    alone = run(42, 0)
    assert run(42, 7) == alone
    assert run(42, 0) == alone
    assert run(43, 0) != alone


def test_draft_noise_is_its_own_and_may_be_made_new_each_step() -> None:
    q = of([1 / 16] * 16)
    expected = gumbel(9, 5, q.token_ids, Purpose.DRAFT).argmax()
    assert rejection.draft_sample(q, 9, 5) == expected
    drafts = {rejection.draft_sample(q, 9, 5, step_start=start) for start in range(6)}
    assert len(drafts) > 1
