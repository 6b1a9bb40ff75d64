"""When a plan still serves for the next step, and when it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.policy.held_plan import HELD_STEPS, HeldPlan
from paceline.policy.interface import DraftChoice, SequenceView, StepView
from paceline.records import SpeculationParams

ADAPTIVE = SpeculationParams(enabled="auto")


def sequence(number: int, most: int = 40) -> SequenceView:
    return SequenceView(number, "r", ADAPTIVE, 100 + number, 10, most, ("suffix", "model"))


THEN = StepView(0.0, [sequence(1), sequence(2)], num_prompt_rows=0)


def held(num_alike: int = 1) -> HeldPlan:
    choices = (DraftChoice(3, "model"), DraftChoice())
    return HeldPlan(7, (0, 0, 0), 0, tuple(THEN.sequences), choices, {}, (), None, frozenset(), num_alike)


def test_it_serves_while_the_same_sequences_go_on() -> None:
    later = THEN._replace(sequences=[s._replace(num_context_tokens=130) for s in THEN.sequences])
    for num_alike, num_steps in enumerate((1, 4, 4, 4)):
        steps = [step for step in range(8, 60) if held(num_alike).serves(later, step, (0, 0, 0))]
        assert steps == list(range(8, 7 + num_steps))


@pytest.mark.parametrize(("num_sequences", "most"), [(2, 4), (8, 8), (16, 16), (64, 16)])
def test_it_serves_longer_where_there_are_more_sequences_to_plan_for(num_sequences: int, most: int) -> None:
    many = StepView(0.0, [sequence(number) for number in range(num_sequences)])
    plan = replace(
        held(len(HELD_STEPS) - 1), sequences=tuple(many.sequences), choices=(DraftChoice(),) * num_sequences
    )
    assert [step for step in range(8, 60) if plan.serves(many, step, (0, 0, 0))] == list(range(8, 7 + most))


def test_it_serves_for_no_other_step_while_plans_still_change() -> None:
    assert not held(0).serves(THEN, 8, (0, 0, 0))


@pytest.mark.parametrize(
    ("lengths", "is_alike"),
    [((3, 0), True), ((2, 0), True), ((1, 0), False), ((0, 0), False), ((3, 1), False)],
)
def test_it_serves_longer_the_oftener_about_the_same_is_found(
    lengths: tuple[int, int], is_alike: bool
) -> None:
    choices = tuple(DraftChoice(length, "model" if length else None) for length in lengths)
    for num_alike in range(len(HELD_STEPS)):
        found = replace(held(0), choices=choices).after(held(num_alike))
        assert found.num_alike == (min(num_alike + 1, len(HELD_STEPS) - 1) if is_alike else 0)
    assert replace(held(0), choices=choices).after(None).num_alike == 0
    assert replace(held(0), choices=choices, wishing=frozenset("r")).after(held(1)).num_alike == 0


CHANGES: dict[str, Callable[[StepView], StepView]] = {
    "a prompt beside it": lambda v: v._replace(num_prompt_rows=16),
    "one sequence less": lambda v: v._replace(sequences=v.sequences[:1]),
    "another sequence": lambda v: v._replace(sequences=[v.sequences[0], sequence(3)]),
    "no use for so many drafts": lambda v: v._replace(sequences=[sequence(1, most=2), v.sequences[1]]),
    "a drafter that failed": lambda v: v._replace(
        sequences=[v.sequences[0]._replace(drafters=("suffix",)), v.sequences[1]]
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_it_does_not_serve_where_the_step_is_another_one(change: Callable[[StepView], StepView]) -> None:
    assert held().serves(THEN, 8, (0, 0, 0))
    assert not held().serves(change(THEN), 8, (0, 0, 0))


@pytest.mark.parametrize("versions", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_it_does_not_serve_once_settings_states_or_acceptance_changed(versions: tuple[int, ...]) -> None:
    assert not held().serves(THEN, 8, versions)
