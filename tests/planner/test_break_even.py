"""Expected tokens and break-even, against every outcome written out and against drawn ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import ConfigError
from paceline.planner.break_even import (
    BestLength,
    best_draft_length,
    break_even_acceptance,
    break_even_tokens,
    implied_acceptance,
    speedup,
    survival,
    tokens_per_step,
)

CHANCE = st.floats(0.0, 1.0)
TIME = st.floats(1e-4, 10.0)


def emitted(outcome: tuple[bool, ...]) -> int:
    """Tokens that a step emits when its drafts fare so: those before the first that falls, and the bonus."""
    return 1 + next((i for i, stands in enumerate(outcome) if not stands), len(outcome))


def by_enumeration(chances: list[float]) -> float:
    """Expectation over all 2^k outcomes, drafts behind a fallen one judged as well."""
    return sum(
        emitted(outcome)
        * math.prod(a if stands else 1 - a for a, stands in zip(chances, outcome, strict=True))
        for outcome in itertools.product((True, False), repeat=len(chances))
    )


@given(st.lists(CHANCE, min_size=0, max_size=9))
def test_by_position_it_is_the_mean_over_every_outcome(chances: list[float]) -> None:
    assert tokens_per_step(chances, len(chances)) == pytest.approx(by_enumeration(chances))


@given(CHANCE, st.integers(0, 9))
def test_independent_it_is_the_mean_over_every_outcome_and_the_geometric_sum(chance: float, k: int) -> None:
    found = tokens_per_step(chance, k)
    assert found == pytest.approx(by_enumeration([chance] * k))
    if chance < 0.999:
        assert found == pytest.approx((1 - chance ** (k + 1)) / (1 - chance))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_drawn_steps_emit_as_many(chances: list[float], seed: int) -> None:
    num_steps = 20_000
    stands = np.random.default_rng(seed).random((num_steps, len(chances))) < np.array(chances)
    counts = 1 + np.cumprod(stands, axis=1).sum(axis=1)
    # Six standard errors: one in 500 million by chance; the least is for counts that hardly vary.
    bound = 6 * counts.std() / math.sqrt(num_steps) + 6 * (len(chances) + 1) / num_steps
    assert abs(counts.mean() - tokens_per_step(chances, len(chances))) < bound


def test_leaving_the_targets_own_token_out_would_be_noticed() -> None:
    assert by_enumeration([0.25] * 4) == pytest.approx(1.33, abs=0.005)
    assert sum(survival(0.25, 4)) == pytest.approx(0.33, abs=0.005)


@given(st.floats(0.0, 1.0), st.integers(1, 16))
def test_implied_acceptance_is_the_inverse(chance: float, k: int) -> None:
    assert tokens_per_step(implied_acceptance(tokens_per_step(chance, k), k), k) == pytest.approx(
        tokens_per_step(chance, k)
    )


@given(st.integers(1, 16), TIME, TIME)
def test_break_even_is_where_gain_turns_to_loss(k: int, step_s: float, plain_s: float) -> None:
    found = break_even_acceptance(k, step_s, plain_s)
    if found is None:
        assert speedup(tokens_per_step(1.0, k), step_s, plain_s) < 1.0
    elif found == 0.0:
        assert speedup(tokens_per_step(0.0, k), step_s, plain_s) >= 1.0 - 1e-9
    else:
        assert speedup(tokens_per_step(found, k), step_s, plain_s) == pytest.approx(1.0)
        if found < 0.99:
            assert speedup(tokens_per_step(found + 0.01, k), step_s, plain_s) > 1.0
        if found > 0.01:
            assert speedup(tokens_per_step(found - 0.01, k), step_s, plain_s) < 1.0


@given(
    st.one_of(CHANCE, st.lists(CHANCE, min_size=1, max_size=8)),
    st.lists(TIME, min_size=8, max_size=8),
    TIME,
)
def test_best_length_is_that_of_a_search_also_behind_a_dip(
    acceptance: float | list[float], times: list[float], plain_s: float
) -> None:
    found = best_draft_length(acceptance, lambda k: times[k - 1], plain_s, most=8)
    most = 8 if isinstance(acceptance, float) else len(acceptance)
    speeds = [1.0]
    for k in range(1, most + 1):
        chances = [acceptance] * k if isinstance(acceptance, float) else acceptance[:k]
        speeds.append(by_enumeration(chances) * plain_s / times[k - 1])
    assert found.speedup == pytest.approx(max(speeds))
    assert speeds[found.draft_length] == pytest.approx(max(speeds))


def test_no_gain_is_length_zero() -> None:
    assert best_draft_length(0.9, lambda k: 10.0, 1.0) == BestLength(0, 1.0)
    assert best_draft_length(0.0, lambda k: 1.0 + k, 1.0).draft_length == 0


def test_nothing_drafted_emits_the_targets_own_token() -> None:
    assert tokens_per_step(0.9, 0) == 1.0
    assert implied_acceptance(1.0, 0) == 0.0
    assert break_even_acceptance(0, 0.1, 0.2) == 0.0
    assert break_even_acceptance(0, 0.2, 0.1) is None
    assert break_even_tokens(0.1, 0.08) == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tokens_per_step(80, 4), "an acceptance of 80"),
        (lambda: tokens_per_step(-0.1, 4), "an acceptance of -0.1"),
        (lambda: tokens_per_step(float("nan"), 4), "an acceptance of nan"),
        (lambda: tokens_per_step(1.5, 0), "an acceptance of 1.5"),
        (lambda: tokens_per_step([0.5, 0.4], 3), "acceptance at 2 positions"),
        (lambda: tokens_per_step(0.5, -1), "a draft length of -1"),
        (lambda: tokens_per_step(0.5, 65), "a draft length of 65"),
        (lambda: implied_acceptance(5.5, 4), "5.5 tokens per step"),
        (lambda: implied_acceptance(0.9, 4), "Count the target's own token"),
        (lambda: speedup(2.0, 0.0, 1.0), "step_s = 0"),
        (lambda: break_even_acceptance(4, 1.0, float("inf")), "plain_s = inf"),
    ],
)
def test_what_cannot_be_computed_is_refused(call: object, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        call()  # type: ignore[operator]
    assert said in str(error.value)
