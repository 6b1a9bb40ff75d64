"""The rule of a step: who goes on drafting, whose match is taken, which drafts are verified."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.policy.acceptance import Acceptance
from paceline.policy.profile import Prices
from paceline.policy.rule import Member, StepRule

VERIFY = 1.0 + 0.05 * np.arange(40.0)
DRAFT = np.array([0.0, 0.2, 0.21, 0.22, 0.23])


def rule(
    *members: int, most: int = 8, price: float = 1.5, verify: np.ndarray = VERIFY, **more: object
) -> StepRule:
    acceptance = Acceptance()
    one = Member(
        1.0, most, acceptance.of("r", "model").replay, acceptance.of("r", "suffix").replay, 0.3,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return StepRule(dict.fromkeys(members, one), Prices(0.05 * price, 0.2 * price), price, verify, DRAFT)


def test_a_draft_goes_on_while_its_next_token_is_worth_a_pass() -> None:
    assert rule(1).going_on([(1, 0.99)]) == [True]
    assert rule(1).going_on([(1, 0.05)]) == [False]
    assert rule(1, most=1).going_on([(1, 0.99)]) == [False]


def test_survival_multiplies_until_it_is_not_worth_it() -> None:
    asked, depth = rule(1, most=60), 0
    while depth < 60 and asked.going_on([(1, 0.8)])[0]:
        depth += 1
    assert depth == 4  # 0.8 ** 5 of a token is no longer worth a pass


def test_a_pass_that_one_would_not_pay_for_two_may_share() -> None:
    dear = {"price": 2.4}
    assert rule(1, **dear).going_on([(1, 0.7)]) == [False]
    assert rule(1, 2, **dear).going_on([(1, 0.7), (2, 0.7)]) == [True, True]
    assert rule(1, 2, **dear).going_on([(1, 0.7), (2, 0.02)]) == [False, False]


def test_fixed_lengths_are_left_alone() -> None:
    fixed = rule(1, is_fixed=True)
    assert fixed.going_on([(1, 0.01), (9, 0.01)]) == [True, True]
    assert fixed.lengths([(1, "model", (0.01, 0.01), True), (9, "model", (0.01,), True)]) == [2, 1]


def test_drafts_that_are_not_worth_a_row_are_not_verified() -> None:
    asked = rule(1, 2)
    lengths = asked.lengths([(1, "model", (0.99, 0.99, 0.01, 0.9), True), (2, "model", (0.02, 0.9), True)])
    assert lengths == [2, 0]


def test_sampled_drafts_are_never_cut_by_looking_at_them() -> None:
    assert rule(1).lengths([(1, "model", (0.01, 0.01), False)]) == [2]


def test_rows_behind_a_bump_are_reached() -> None:
    bumpy = np.array([1.0, 2.0, 2.0, 1.05, 1.1, 1.15])
    assert rule(1, verify=bumpy).lengths([(1, "model", (0.95,) * 4, True)]) == [4]


@pytest.mark.parametrize(("confidences", "is_taken"), [((0.95,) * 4, True), ((0.3,), False), ((), False)])
def test_a_match_is_taken_if_it_is_worth_more_than_the_draft_model(
    confidences: tuple[float, ...], is_taken: bool
) -> None:
    asked = rule(1)
    assert asked.prefers_match(1, confidences) is is_taken
    assert (1 in asked.passed_over) is (bool(confidences) and not is_taken)
    assert asked.prefers_match(5, (0.99,)) is False
