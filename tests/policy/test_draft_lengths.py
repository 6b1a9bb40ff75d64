"""The search for draft lengths, against every possibility."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.policy.draft_lengths import Candidate, best_lengths, worthwhile_prefix
from paceline.policy.profile import Profile

FLAT_DRAFT = np.array([0.0, 0.2, 0.21, 0.22, 0.23, 0.24])


def profile(chances: list[float], weight: float = 1.0, *, has_passes: bool = True) -> Profile:
    survival = np.cumprod(chances)
    ones = np.ones(len(chances))
    return Profile(weight * survival, ones, ones if has_passes else 0 * ones)


def goodput(
    lengths: tuple[int, ...], parts: list[Profile], plain: float, verify: np.ndarray, draft: np.ndarray
) -> float:
    gain = plain + sum(float(p.gain[:k].sum()) for p, k in zip(parts, lengths, strict=True))
    seconds = float(verify[sum(lengths)])
    for depth in range(max(lengths, default=0)):
        active = sum(k > depth and p.active[0] > 0 for p, k in zip(parts, lengths, strict=True))
        seconds += float(draft[active])
    return gain / seconds


def exhaustive(parts: list[Profile], plain: float, verify: np.ndarray, draft: np.ndarray) -> float:
    choices = itertools.product(*(range(len(p.gain) + 1) for p in parts))
    return max(goodput(lengths, parts, plain, verify, draft) for lengths in choices)


chance = st.floats(0.05, 0.99)


@settings(max_examples=150, deadline=None)
@given(
    chances=st.lists(st.lists(chance, min_size=1, max_size=3), min_size=1, max_size=3),
    increments=st.lists(st.floats(0.0, 0.5), min_size=10, max_size=10),
)
def test_look_ups_get_the_best_lengths_whatever_rows_cost(
    chances: list[list[float]], increments: list[float]
) -> None:
    parts = [profile(one, has_passes=False) for one in chances]
    verify = 1.0 + np.concatenate(([0.0], np.cumsum(increments)))
    plain = float(len(parts))
    choice = best_lengths([Candidate(part) for part in parts], plain, verify, FLAT_DRAFT)
    assert choice.gain / choice.seconds == pytest.approx(exhaustive(parts, plain, verify, FLAT_DRAFT))


@settings(max_examples=150, deadline=None)
@given(
    chances=st.lists(st.lists(chance, min_size=1, max_size=3), min_size=1, max_size=3),
    increments=st.lists(st.floats(0.0, 0.5), min_size=10, max_size=10),
)
def test_with_a_draft_model_it_is_never_worse_than_plain_or_any_common_length(
    chances: list[list[float]], increments: list[float]
) -> None:
    parts = [profile(one) for one in chances]
    verify = 1.0 + np.concatenate(([0.0], np.cumsum(increments)))
    plain = float(len(parts))
    choice = best_lengths([Candidate(part) for part in parts], plain, verify, FLAT_DRAFT)
    found = choice.gain / choice.seconds
    assert found == pytest.approx(goodput(tuple(choice.lengths), parts, plain, verify, FLAT_DRAFT))
    assert found >= plain / float(verify[0]) - 1e-12
    assert found >= 0.95 * exhaustive(parts, plain, verify, FLAT_DRAFT)


def test_the_known_optimum_of_independent_tokens() -> None:
    # 0.8 each, a draft pass of 0.1 and rows for nothing: the best k is found by hand.
    verify, draft = np.full(20, 1.0), np.array([0.0, 0.1])
    by_hand = max(range(13), key=lambda k: sum(0.8**j for j in range(k + 1)) / (1.0 + 0.1 * k))
    choice = best_lengths([Candidate(profile([0.8] * 12))], 1.0, verify, draft)
    assert choice.lengths == [by_hand]
    assert choice.speedup == pytest.approx(sum(0.8**j for j in range(by_hand + 1)) / (1 + 0.1 * by_hand))


def test_a_dip_does_not_end_the_search() -> None:
    verify = np.array([1.0, 2.2, 2.2, 1.1, 1.1, 1.1, 3.0])
    choice = best_lengths([Candidate(profile([0.9] * 6, has_passes=False))], 1.0, verify, FLAT_DRAFT)
    assert choice.lengths == [5]


def test_nothing_is_always_a_candidate() -> None:
    verify = 1.0 + np.arange(10.0)
    choice = best_lengths([Candidate(profile([0.5] * 4))] * 2, 2.0, verify, FLAT_DRAFT)
    assert choice.lengths == [0, 0]
    assert choice.speedup == 1.0
    assert best_lengths([], 2.0, verify, FLAT_DRAFT).lengths == []


def test_weights_and_starts_are_part_of_the_price() -> None:
    verify = 1.0 + 0.4 * np.arange(10.0)
    apt = [
        Candidate(profile([0.9] * 3, weight=5.0, has_passes=False)),
        Candidate(profile([0.9] * 3, has_passes=False)),
    ]
    assert (
        best_lengths(apt, 6.0, verify, FLAT_DRAFT).lengths[0]
        > best_lengths(apt, 6.0, verify, FLAT_DRAFT).lengths[1]
    )
    late = [Candidate(profile([0.9] * 3), start_s=3.0)]
    assert best_lengths(late, 1.0, np.full(9, 1.0), FLAT_DRAFT).lengths == [0]


def test_at_a_given_price_rows_that_cost_more_than_they_bring_are_left_out() -> None:
    verify = np.array([1.0, 1.1, 1.2, 1.3, 2.5])
    assert worthwhile_prefix([0.9, 0.5, 0.05, 0.04], verify, price=2.0) == 2
    assert worthwhile_prefix([0.1], verify, price=2.0) == 0
    assert worthwhile_prefix([], verify, price=2.0) == 0
    assert worthwhile_prefix([0.9] * 9, verify, price=0.1) == 4
