"""When a plan still serves for the next step, and when it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.policy.held_plan import HELD_STEPS, HeldPlan
from paceline.policy.interface import DraftChoice, SequenceView, StepView
from paceline.records import SpeculationParams

ADAPTIVE = SpeculationParams(enabled="auto")


def sequence(number: int, most: int = 40) -> SequenceView:
    return SequenceView(number, "r", ADAPTIVE, 100 + number, 10, most, ("suffix", "model"))


THEN = StepView(0.0, [sequence(1), sequence(2)], num_prompt_rows=0)


def held(*, is_settled: bool = True) -> HeldPlan:
    choices = (DraftChoice(3, "model"), DraftChoice())
    return HeldPlan(7, (0, 0, 0), 0, tuple(THEN.sequences), choices, {}, (), None, is_settled)


def test_it_serves_while_the_same_sequences_go_on() -> None:
    later = THEN._replace(sequences=[s._replace(num_context_tokens=130) for s in THEN.sequences])
    steps = [step for step in range(8, 8 + 2 * HELD_STEPS) if held().serves(later, step, (0, 0, 0))]
    assert steps == list(range(8, 7 + HELD_STEPS))


def test_it_serves_for_no_other_step_while_plans_still_change() -> None:
    assert not held(is_settled=False).serves(THEN, 8, (0, 0, 0))


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
