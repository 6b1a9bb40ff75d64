"""Best draft length by load, its crossings, and what a machine serves: by hand and against the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import ConfigError
from paceline.planner.break_even import tokens_per_step
from paceline.planner.capacity import (
    Crossing,
    StepModel,
    Workload,
    at_load,
    best_at,
    break_even_concurrency,
    crossing,
    groups_needed,
    most_requests,
)
from paceline.planner.published import PUBLISHED, compare
from paceline.planner.simulated import independent, simulate
from paceline.policy.costs import CostCurve
from paceline.policy.simulation.curves import roofline
from paceline.policy.step_planner import LEAST_GAIN

SMALL = StepModel(
    CostCurve.of({1: 0.060, 2: 0.061, 4: 0.063, 8: 0.080, 16: 0.130, 32: 0.230, 64: 0.430}),
    CostCurve.of({1: 0.008, 8: 0.009, 16: 0.012, 64: 0.040, 128: 0.080}),
)
LARGE = StepModel(
    roofline("h100", 70, num_accelerators=8, kv_bytes_per_token=327_680),
    roofline("h100", 1, num_accelerators=8, kv_bytes_per_token=32_768),
)
WORK = Workload(0.8, 16, 200)
ALONE = replace(WORK, counts_prompts=False)


def test_a_point_is_tokens_over_the_step_s_time() -> None:
    point = at_load(SMALL, ALONE, 2, 3)
    step_s = SMALL.target.seconds_of(8) + 3 * SMALL.draft.seconds_of(2)
    assert point.tokens_per_s == pytest.approx(2 * tokens_per_step(0.8, 3) / step_s)
    assert point.token_s == pytest.approx(step_s / tokens_per_step(0.8, 3))
    assert point.requests_per_s == pytest.approx(point.tokens_per_s / 200)


def test_prompts_take_rows_of_both_models() -> None:
    point = at_load(SMALL, WORK, 4, 1)
    rows = 4 * 1.8 * 16 / 200
    step_s = SMALL.target.seconds_of(8 + rows) + SMALL.draft.seconds_of(4 + rows)
    assert point.tokens_per_s == pytest.approx(4 * 1.8 / step_s)
    assert point.tokens_per_s < at_load(SMALL, ALONE, 4, 1).tokens_per_s


def test_the_best_length_is_that_of_a_search_and_zero_unless_it_gains_enough() -> None:
    for concurrency in (1, 2, 5, 8, 12, 16):
        found = best_at(SMALL, WORK, concurrency)
        speeds = [at_load(SMALL, WORK, concurrency, k).tokens_per_s for k in range(17)]
        if max(speeds) >= (1 + LEAST_GAIN) * speeds[0]:
            assert found.tokens_per_s == max(speeds)
        else:
            assert found.draft_length == 0
    assert best_at(SMALL, Workload([0.9], 16, 200), 1).draft_length == 1, "no chance is known beyond"


def test_the_crossing_is_the_first_load_at_which_nothing_is_gained() -> None:
    found = crossing(SMALL, WORK).concurrency
    assert found is not None
    assert found > 4
    assert best_at(SMALL, WORK, found).draft_length == 0
    assert all(best_at(SMALL, WORK, n).draft_length for n in range(1, found))


def test_crossings_of_one_fixed_length_and_of_none() -> None:
    fixed = break_even_concurrency(SMALL, WORK, 4).concurrency
    assert fixed is not None
    plain, drafted = at_load(SMALL, WORK, fixed, 0), at_load(SMALL, WORK, fixed, 4)
    assert drafted.tokens_per_s <= plain.tokens_per_s
    assert at_load(SMALL, WORK, fixed - 1, 4).tokens_per_s > at_load(SMALL, WORK, fixed - 1, 0).tokens_per_s
    assert crossing(SMALL, replace(WORK, acceptance=0.0)) == Crossing(1)
    flat = StepModel(CostCurve.of({1: 0.06, 4096: 0.0601}), CostCurve.of({1: 0.001, 4096: 0.0011}))
    assert crossing(flat, ALONE, limit=256) == Crossing(None)


def test_long_contexts_of_many_sequences_pay_again() -> None:
    long = Workload(0.8, 8192, 1024, counts_prompts=False)
    memory_bound = StepModel(
        replace(LARGE.target, per_context_s=10 * LARGE.target.per_context_s), LARGE.draft
    )
    found = crossing(memory_bound, long)
    assert found.concurrency is None or found.resumes is not None
    few = crossing(LARGE, Workload(0.7, 64, 64, counts_prompts=False))
    assert few.concurrency is not None


def test_on_eight_h100s_the_crossing_of_70b_and_1b_is_where_rows_begin_to_cost() -> None:
    """By hand: a read of 140 GB takes 6.5 ms, a row 0.0295 ms, so that 221 rows are free; with one draft a
    sequence has two, and a step emits 1.8 tokens for 1 + 1.1 ms of drafting."""
    work = Workload(0.8, 1, 256, counts_prompts=False)
    bare = StepModel(replace(LARGE.target, per_context_s=0.0), replace(LARGE.draft, per_context_s=0.0))
    found = crossing(bare, work).concurrency
    assert found is not None
    read_s, row_s = 140e9 / (3350e9 * 0.8 * 8), 140e9 / (989e12 * 0.6 * 8)
    plain = read_s + 1e-3
    drafting = 2e9 / (3350e9 * 0.8 * 8) + 1e-3
    by_hand = (1.8 * plain / (1 + LEAST_GAIN) - drafting - 1e-3) / (2 * row_s)
    assert found == pytest.approx(by_hand, rel=0.03)
    assert 180 < found < 200


def test_most_requests_are_those_within_the_time_that_was_asked_for() -> None:
    plain = most_requests(SMALL, WORK, 32, None, speculates=False)
    assert plain is not None
    assert plain.requests_per_s == max(at_load(SMALL, WORK, n, 0).requests_per_s for n in range(1, 33))
    assert most_requests(SMALL, WORK, 32, 0.04, speculates=False) is None
    quick = most_requests(SMALL, WORK, 32, 0.04, speculates=True)
    assert quick is not None
    assert quick.token_s <= 0.04
    assert quick.draft_length > 0


def test_routes_share_machines_by_time() -> None:
    point = at_load(SMALL, WORK, 4, 0)
    half = replace(WORK, arrivals_per_s=point.requests_per_s / 2)
    assert groups_needed([half], [point], 1.0) == 1
    assert groups_needed([half, half], [point, point], 1.0) == 1
    assert groups_needed([half, half, half], [point] * 3, 1.0) == 2
    assert groups_needed([half, half], [point, point], 0.8) == 2
    with pytest.raises(ConfigError, match="Write 80 %"):
        groups_needed([half], [point], 80)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1.5, 10, 10), "acceptance of 1.5"),
        ((0.5, 0, 10), "prompt_tokens = 0"),
        ((0.5, 1, 1, -1.0), "arrivals"),
    ],
)
def test_traffic_out_of_range_is_refused(arguments: tuple[float, ...], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Workload(*arguments)  # type: ignore[arg-type]
    assert said in str(error.value)
    with pytest.raises(ConfigError):
        at_load(SMALL, WORK, 0, 1)


def test_the_simulated_policy_agrees_with_the_arithmetic_at_its_own_load() -> None:
    work = replace(WORK, arrivals_per_s=0.1)
    plain = simulate(SMALL, [work], speculates=False, max_num_seqs=8, num_answers=60)
    auto = simulate(SMALL, [work], speculates=True, max_num_seqs=8, num_answers=60)
    for served, best in ((plain, at_load), (auto, best_at)):
        near = round(max(1.0, served.concurrency))
        said = best(SMALL, work, near, 0) if best is at_load else best_at(SMALL, work, near)
        # Arrivals come in bunches, so that steps are now of fewer and now of more sequences.
        assert served.routes[0].token_s == pytest.approx(said.token_s, rel=0.15)
    assert auto.routes[0].token_s < plain.routes[0].token_s
    assert plain.routes[0].draft_length == 0
    assert auto.routes[0].draft_length > 2
    assert plain.num_waiting <= 1


def test_beyond_the_crossing_the_simulated_policy_hardly_drafts() -> None:
    found = crossing(SMALL, WORK).concurrency
    assert found is not None
    rate = at_load(SMALL, WORK, 2 * found, 0).requests_per_s
    busy = replace(WORK, arrivals_per_s=1.5 * rate)
    auto = simulate(SMALL, [busy], speculates=True, max_num_seqs=2 * found, num_answers=150)
    assert auto.concurrency > found
    assert auto.routes[0].draft_length < 0.6
    assert auto.num_waiting > 10, "it does not keep up, and says so"


def test_acceptance_by_position_becomes_one_of_as_many_tokens() -> None:
    work = replace(WORK, acceptance=[0.9, 0.7, 0.5])
    assert tokens_per_step(independent(work), 3) == pytest.approx(tokens_per_step([0.9, 0.7, 0.5], 3))
    assert independent(WORK) == 0.8


def test_published_figures_are_fitted_at_the_smallest_batch_only() -> None:
    for one in PUBLISHED:
        found = compare(one)
        smallest = min(one.speedups)
        assert found.speedups[smallest] == pytest.approx(one.speedups[smallest], abs=1e-6)
        assert 0 < found.acceptance < 1
    eagle, eagle_3, on_sglang, _ = PUBLISHED
    assert (eagle.gains_to, eagle.loses_from) == (24, 32)
    assert (eagle_3.gains_to, eagle_3.loses_from) == (56, None)
    assert (on_sglang.gains_to, on_sglang.loses_from) == (16, 24)


def test_of_the_published_crossings_one_is_met_and_the_others_are_off_as_documented() -> None:
    found = [compare(one).crossing.concurrency for one in PUBLISHED]
    assert found[0] is not None
    assert 24 <= found[0] <= 32
    assert found[1] is not None
    assert found[1] < 56, "too low"
    assert found[2] is not None
    assert found[2] > 4 * 24, "four times too high"
