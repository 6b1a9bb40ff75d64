"""Closed loops without speculation, forecast from step costs, against the simulator and by hand."""

from __future__ import annotations

import pytest
from tests.policy.scenes import COSTS, GOOD, machine, run_fixed

from paceline.engine.scheduler import MIN_MIXED_PREFILL, SchedulerLimits
from paceline.measure.forecast import plain_seconds
from paceline.policy.costs import CostCurve
from paceline.policy.simulation import simulator
from paceline.policy.step_costs import CalibratedCosts, StepCosts


def test_one_request_takes_its_prompt_and_a_step_for_each_further_token() -> None:
    costs = StepCosts(CalibratedCosts(CostCurve.of({1: 0.1, 512: 51.2})))
    assert plain_seconds(costs, [(300, 5)], 1) == pytest.approx(30.0 + 4 * 0.1)
    assert plain_seconds(costs, [(300, 5), (10, 0)], 1) == plain_seconds(costs, [(300, 5)], 1)
    assert plain_seconds(costs, [], 3) == 0.0


def test_two_clients_share_steps_and_a_prompt_beside_them_comes_in_small_pieces() -> None:
    costs = StepCosts(CalibratedCosts(CostCurve.of({1: 1.0, 512: 1.0})))
    # Steps cost the same whatever is in them: both prompts at once, then nine steps together.
    assert plain_seconds(costs, [(20, 10), (20, 10)], 2) == pytest.approx(1 + 9)
    # The third joins when the first ends: its prompt takes three steps of eight rows, its answer nine more.
    assert plain_seconds(costs, [(20, 10), (20, 30), (20, 10)], 2) == pytest.approx(1 + 29)


@pytest.mark.parametrize(("concurrency", "prompt", "output"), [(1, 200, 60), (4, 200, 60), (8, 16, 100)])
def test_it_agrees_with_the_simulator(concurrency: int, prompt: int, output: int) -> None:
    result = run_fixed(
        0, machine(noise=0.0), steps=900, acceptance=GOOD, concurrency=concurrency, prompt_tokens=prompt,
        output_tokens=output,
    )  # fmt: skip
    count = result.num_finished
    forecast = count * output / plain_seconds(StepCosts(COSTS), [(prompt, output)] * count, concurrency)
    assert forecast == pytest.approx(result.goodput, rel=0.05)


def test_the_simulator_has_the_engine_s_rules() -> None:
    """It cannot import them: the policy knows no engine."""
    limits = SchedulerLimits()
    assert limits.mixed_prefill_ratio == simulator.MIXED_RATIO
    assert limits.joint_start_s == simulator.JOINT_START_S
    assert limits.most_prompt_rows(1) == MIN_MIXED_PREFILL == 8
