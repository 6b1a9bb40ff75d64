"""Closed loops without speculation, forecast from step costs, against the simulator and by hand."""

from __future__ import annotations

import pytest
from tests.policy.scenes import COSTS, GOOD, machine, run_fixed

from paceline.engine.scheduler import MIN_MIXED_PREFILL, SchedulerLimits
from paceline.measure.forecast import LoopRequest, forecast
from paceline.policy.costs import CostCurve
from paceline.policy.simulation import simulator
from paceline.policy.step_costs import CalibratedCosts, StepCosts


def plain_seconds(costs: StepCosts, lengths: list[tuple[int, int]], concurrency: int) -> float:
    """Of (prompt tokens, output tokens) of each request."""
    return forecast(costs, [LoopRequest(*one) for one in lengths], concurrency).seconds


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
    goodput = count * output / plain_seconds(StepCosts(COSTS), [(prompt, output)] * count, concurrency)
    assert goodput == pytest.approx(result.goodput, rel=0.05)


def test_what_prompts_share_is_computed_once_and_waited_for() -> None:
    costs = StepCosts(CalibratedCosts(CostCurve.of({1: 1.0, 100: 100.0})))
    apart = forecast(costs, [LoopRequest(40, 3), LoopRequest(50, 3)], 2)
    assert (apart.num_steps, apart.prompt_s, apart.seconds) == pytest.approx((3, 90.0, 94.0))
    # The second begins once the first is through, beside its first step: 18 rows and one.
    shared = forecast(costs, [LoopRequest(40, 3), LoopRequest(50, 3, num_reused=32)], 2)
    assert (shared.num_steps, shared.prompt_s) == pytest.approx((4, 40.0 + 19.0))
    assert shared.seconds == pytest.approx(40.0 + 19.0 + 2.0 + 1.0)
    # Nobody computes it for one that is alone.
    alone = forecast(costs, [LoopRequest(50, 3, num_reused=32)], 1)
    assert alone.seconds == pytest.approx(18.0 + 2.0)


def test_the_simulator_has_the_engine_s_rules() -> None:
    """It cannot import them: the policy knows no engine."""
    limits = SchedulerLimits()
    assert limits.mixed_prefill_ratio == simulator.MIXED_RATIO
    assert limits.joint_start_s == simulator.JOINT_START_S
    assert limits.most_prompt_rows(1) == MIN_MIXED_PREFILL == 8
