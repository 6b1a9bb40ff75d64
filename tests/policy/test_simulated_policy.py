"""The policy's decisions where the best ones are known: the code that serves, on simulated machines."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from paceline.policy.costs import CostCurve
from paceline.policy.interface import FixedPolicy
from paceline.policy.routes import RouteSettings
from paceline.policy.simulation.curves import roofline
from paceline.policy.simulation.simulator import Simulator
from paceline.policy.simulation.traffic import AcceptanceProcess, SimulatedRoute
from paceline.policy.states import EventKind, PauseReason, RouteState
from paceline.policy.step_costs import CalibratedCosts
from paceline.policy.transitions import DWELL_STEPS
from tests.policy.scenes import COSTS, GOOD, auto, changes, fixed, machine, run_auto, run_fixed

BAD_BUT_SURE = AcceptanceProcess(0.04, insight=0.0, shift=4.5)
"""Hardly a draft is right, and the drafter is as confident as ever."""


@pytest.mark.parametrize("acceptance", [0.1, 0.4, 0.7, 0.9])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_as_good_as_the_best_fixed_length_and_never_worse_than_plain(
    acceptance: float, concurrency: int
) -> None:
    traffic = {
        "acceptance": AcceptanceProcess(acceptance, spread=0.0),
        "concurrency": concurrency,
        "prompt_tokens": 16,
        "output_tokens": 150,
    }
    speeds = {
        k: run_fixed(k, machine(), steps=500, **traffic).goodput_between(100) for k in (0, 1, 2, 3, 4, 6)
    }
    found = [run_auto(machine(), steps=700, seed=seed, **traffic)[0] for seed in range(3)]
    speed = float(np.mean([result.goodput_between(300) for result in found]))
    assert speed >= 0.98 * speeds[0]
    assert speed >= 0.95 * max(speeds.values())


def test_what_a_drafter_knows_of_its_tokens_beats_every_fixed_length() -> None:
    traffic = {
        "acceptance": AcceptanceProcess(0.7, spread=0.7), "concurrency": 1, "prompt_tokens": 16,
        "output_tokens": 400,
    }  # fmt: skip
    best = max(run_fixed(k, machine(), **traffic).goodput_between(50) for k in (1, 2, 3, 4, 6, 8))
    result, _ = run_auto(machine(), steps=600, **traffic)
    assert result.goodput_between(200) > 1.03 * best


@pytest.mark.parametrize("seed", range(3))
def test_k_goes_to_zero_as_load_rises_and_returns_as_it_falls(seed: int) -> None:
    policy = auto()
    # Answers of one length would end together, and again and again a few would decode while others begin.
    traffic = SimulatedRoute(
        "r", GOOD, concurrency=lambda now: 24 if 15 < now < 60 else 1, prompt_tokens=16, output_tokens=100,
        is_geometric=True,
    )  # fmt: skip
    result = Simulator(machine(), [traffic], policy, seed).run(seconds=120)
    at = [step.at for step in result.steps]
    begin, busy, end = (int(np.searchsorted(at, t)) for t in (14, 30, 59))
    calm_again = int(np.searchsorted(at, 100))
    assert result.mean_draft_length("r", 60, begin) > 2
    assert result.mean_draft_length("r", busy, end) == 0.0
    assert result.mean_draft_length("r", calm_again) > 2
    paused, resumed = changes(policy)
    assert (paused.after, resumed.before, resumed.after) == ("paused: load", "paused: load", "speculating")
    assert "concurrent sequences verifying" in paused.sentence
    assert "break-even acceptance is" in paused.sentence
    assert paused.numbers_after["break_even"] > paused.numbers_after["acceptance"]
    assert resumed.numbers_after["break_even"] < resumed.numbers_after["acceptance"]
    assert resumed.numbers_before == paused.numbers_after


def collapse(output_tokens: int, **more: object) -> tuple[list[int], Simulator]:
    """Steps of the changes of state when acceptance collapses at step 600 and recovers at step 1,000."""
    policy = auto()
    traffic = SimulatedRoute(
        "r", lambda now, step: BAD_BUT_SURE if 600 <= step < 1000 else GOOD, concurrency=1, prompt_tokens=16,
        output_tokens=output_tokens, **more,  # type: ignore[arg-type]
    )  # fmt: skip
    simulator = Simulator(machine(), [traffic], policy)
    simulator.run(steps=1700)
    assert [d.after for d in changes(policy)] == ["paused: acceptance", "speculating"]
    assert any(d.kind is EventKind.DRIFT for d in policy.log.recent)
    return [d.step for d in changes(policy)], simulator


def test_a_collapse_of_acceptance_pauses_and_a_recovery_resumes_where_draft_kv_is_at_hand() -> None:
    (paused, resumed), simulator = collapse(output_tokens=5000)
    assert 600 < paused <= 650
    assert 1000 < resumed <= 1200
    assert simulator.result.mean_draft_length("r", 660, 1000) < 0.2
    assert simulator.result.mean_draft_length("r", 1250) > 2


def test_a_watcher_that_is_aborted_is_replaced() -> None:
    policy = auto()
    traffic = SimulatedRoute(
        "r", lambda now, step: BAD_BUT_SURE if step < 400 else GOOD, concurrency=1, prompt_tokens=16,
        output_tokens=5000,
    )  # fmt: skip
    simulator = Simulator(machine(), [traffic], policy)
    simulator.run(steps=300)
    assert policy.report("r").reason is PauseReason.ACCEPTANCE
    simulator.abort_all()
    simulator.run(steps=700)
    assert policy.report("r").state is RouteState.SPECULATING


def test_without_scoring_probes_are_drafts_and_find_a_recovery_too() -> None:
    (paused, resumed), _ = collapse(output_tokens=5000, can_score=False)
    assert paused <= 650
    assert resumed <= 1200


def test_where_no_draft_kv_is_at_hand_a_recovery_is_found_with_one_of_the_next_requests() -> None:
    (paused, resumed), _ = collapse(output_tokens=200)
    assert paused <= 660  # a few of these steps read a prompt
    # Three requests of 200 steps each begin in that time.
    assert resumed <= 1000 + 600


def test_a_route_of_five_token_answers_never_speculates() -> None:
    result, policy = run_auto(
        machine(), steps=600, acceptance=AcceptanceProcess(0.95), concurrency=4, prompt_tokens=20,
        output_tokens=5,
    )  # fmt: skip
    assert result.num_finished > 100
    assert sum(sum(step.asked.values()) for step in result.steps) == 0
    report = policy.report("r")
    assert (report.state, report.reason) == (RouteState.PAUSED, PauseReason.SHORT_OUTPUTS)
    assert "about 5 tokens" in report.sentence


def test_a_cap_that_is_too_low_is_enough_to_know() -> None:
    result, _ = run_auto(
        machine(), steps=100, acceptance=AcceptanceProcess(0.95), concurrency=2, prompt_tokens=20,
        output_tokens=400, max_tokens=7,
    )  # fmt: skip
    assert sum(sum(step.asked.values()) for step in result.steps) == 0


def test_short_memory_pauses_the_route_of_less_weight_and_gives_it_back() -> None:
    cheap = CostCurve.of({1: 0.060, 64: 0.062})
    policy = auto(
        {"high": RouteSettings(weight=4.0), "low": RouteSettings()}, CalibratedCosts(cheap, COSTS.drafts)
    )
    common = {"prompt_tokens": 64, "output_tokens": 200}
    traffic = [
        SimulatedRoute("high", GOOD, concurrency=2, **common),
        SimulatedRoute("low", GOOD, concurrency=lambda now: 7 if 12 < now < 40 else 2, **common),
    ]
    result = Simulator(machine(target=cheap, num_blocks=100), traffic, policy).run(seconds=70)
    low = changes(policy, "low")
    assert [d.after for d in low][:2] == ["paused: memory", "speculating"]
    assert low[-1].after == "speculating"
    assert "KV memory is" in low[0].sentence
    assert "KV memory is down to" in low[1].sentence
    assert all(d.step > low[0].step for d in changes(policy, "high"))
    assert result.mean_draft_length("low", low[0].step + 5, low[1].step - 3) == 0.0
    assert result.mean_draft_length("low", low[-1].step, low[-1].step + 100) > 1


def test_two_routes_in_one_batch_have_draft_lengths_of_their_own() -> None:
    policy = auto({"apt": RouteSettings(), "inapt": RouteSettings()})
    traffic = [
        SimulatedRoute("apt", AcceptanceProcess(0.95), concurrency=1, prompt_tokens=16, output_tokens=300),
        SimulatedRoute("inapt", AcceptanceProcess(0.45), concurrency=1, prompt_tokens=16, output_tokens=300),
    ]
    result = Simulator(machine(), traffic, policy).run(steps=500)
    apt, inapt = (result.mean_draft_length(name, 100) for name in ("apt", "inapt"))
    assert apt > 3 * inapt > 0


@pytest.mark.parametrize(("acceptance", "concurrency"), [(0.9, 1), (0.6, 1), (0.03, 1), (0.8, 48)])
def test_a_noisy_clock_flips_nothing(acceptance: float, concurrency: int) -> None:
    result, policy = run_auto(
        machine(noise=0.3, outliers=0.02), steps=1500, acceptance=AcceptanceProcess(acceptance),
        concurrency=concurrency, prompt_tokens=16, output_tokens=150, is_geometric=True,
    )  # fmt: skip
    # Answers of one length would end together, and the load would come in waves.
    # At most the one change that says where it belongs.
    found = changes(policy)
    assert len(found) <= 1
    assert all(d.step < 150 for d in found)
    is_worth_it = acceptance > 0.5 and concurrency == 1
    assert (result.mean_draft_length("r", 200) > 0.9) == is_worth_it


def test_a_bump_in_the_step_costs_does_not_stop_the_search() -> None:
    # Two to four rows are dear, eight cost no more than one: only past the bump does drafting pay.
    bumpy = CostCurve.of({1: 0.060, 2: 0.110, 4: 0.112, 5: 0.065, 8: 0.066, 16: 0.13})
    policy = auto(None, CalibratedCosts(bumpy, COSTS.drafts))
    result, _ = run_auto(
        machine(target=bumpy), policy=policy, steps=400, acceptance=AcceptanceProcess(0.9, spread=0.0),
        concurrency=1, prompt_tokens=16, output_tokens=200,
    )  # fmt: skip
    assert result.mean_draft_length("r", 100) >= 4
    plain = run_fixed(
        0, machine(target=bumpy), acceptance=AcceptanceProcess(0.9, spread=0.0), concurrency=1,
        prompt_tokens=16, output_tokens=200,
    )  # fmt: skip
    assert result.goodput_between(100) > 1.5 * plain.goodput_between(100)


@pytest.mark.parametrize("seed", range(3))
def test_a_state_is_kept_for_twenty_steps_even_at_break_even(seed: int) -> None:
    policy = auto()
    traffic = SimulatedRoute(
        "r", AcceptanceProcess(0.22, spread=0.4), concurrency=3, prompt_tokens=16, output_tokens=120
    )
    Simulator(machine(noise=0.15), [traffic], policy, seed=seed).run(steps=1200)
    steps = [d.step for d in changes(policy)]
    assert all(later - earlier >= DWELL_STEPS for earlier, later in itertools.pairwise(steps))


def test_probing_a_hopeless_route_costs_less_than_one_in_a_hundred() -> None:
    traffic = {
        "acceptance": BAD_BUT_SURE, "concurrency": 1, "prompt_tokens": 16, "output_tokens": 300,
    }  # fmt: skip
    plain = run_fixed(0, machine(noise=0.0), steps=2000, **traffic)
    result, policy = run_auto(machine(noise=0.0), steps=2000, **traffic)
    assert policy.report("r").probes_lost_s > 0
    for begin in (500, 1000):
        ratio = result.goodput_between(begin, begin + 1000) / plain.goodput_between(begin, begin + 1000)
        assert ratio >= 0.988


def test_paused_routes_hold_no_draft_kv_but_for_one_that_watches() -> None:
    policy = auto()
    traffic = SimulatedRoute("r", BAD_BUT_SURE, concurrency=4, prompt_tokens=16, output_tokens=300)
    simulator = Simulator(machine(), [traffic], policy)
    simulator.run(steps=300)
    assert policy.report("r").state is RouteState.PAUSED
    for _ in range(100):
        simulator.run(steps=1)
        assert sum(s.num_draft_computed > 0 for s in simulator._running) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_matches_are_taken_where_they_are_worth_more_than_the_draft_model(seed: int) -> None:
    def goodput(**settings: Any) -> float:
        traffic = SimulatedRoute(
            "r", AcceptanceProcess(0.75), suffix=AcceptanceProcess(0.9, coverage=0.25), concurrency=1,
            prompt_tokens=16, output_tokens=300,
        )  # fmt: skip
        return Simulator(machine(), [traffic], auto(**settings), seed).run(steps=500).goodput_between(150)

    assert goodput() > 1.1 * max(goodput(drafters=("suffix",)), goodput(drafters=("model",)))


@pytest.mark.parametrize("seed", range(3))
def test_matches_get_long_again_after_probes_of_a_single_token(seed: int) -> None:
    traffic = SimulatedRoute(
        "r", AcceptanceProcess(0.5), suffix=AcceptanceProcess(0.9, coverage=0.4), concurrency=1,
        prompt_tokens=16, output_tokens=300,
    )  # fmt: skip
    policy = auto(drafters=("suffix",))
    result = Simulator(machine(), [traffic], policy, seed).run(steps=500)
    assert result.mean_draft_length("r", 150) > 1.5


def test_rare_sure_matches_are_taken_though_the_mean_step_gains_little_by_them() -> None:
    # At sixteen sequences a row costs three quarters of a token.
    traffic = {
        "acceptance": GOOD, "suffix": AcceptanceProcess(0.95, coverage=0.08), "has_model": False,
        "concurrency": 16, "prompt_tokens": 16, "output_tokens": 150, "is_geometric": True,
    }  # fmt: skip
    gains = []
    for seed in range(3):
        plain = SimulatedRoute("r", speculation=fixed(0), **traffic)
        without = Simulator(machine(), [plain], FixedPolicy(), seed).run(steps=600).goodput_between(100)
        policy = auto(drafters=("suffix",))
        result, _ = run_auto(machine(), policy=policy, steps=600, seed=seed, **traffic)
        gains.append(result.goodput_between(100) / without)
    assert np.mean(gains) > 1.015


def test_a_draft_model_that_costs_as_much_as_the_target_is_left_alone() -> None:
    dear = CalibratedCosts(COSTS.target, {"model": COSTS.target})
    result, policy = run_auto(
        machine(draft=COSTS.target), policy=auto(None, dear, drafters=("model",)), steps=300,
        acceptance=GOOD, concurrency=1, prompt_tokens=16, output_tokens=100,
    )  # fmt: skip
    assert result.mean_draft_length("r", 100) < 0.1
    assert policy.report("r").reason is PauseReason.ACCEPTANCE


def test_a_guess_of_the_costs_is_corrected_by_serving() -> None:
    # Three times the guessed machine's speed, and another shape.
    hardware = machine(target=CostCurve.of({1: 0.02, 4: 0.021, 8: 0.05}), draft=CostCurve.of({1: 0.002}))
    traffic = {"acceptance": GOOD, "concurrency": 1, "prompt_tokens": 16, "output_tokens": 300}
    result, policy = run_auto(hardware, policy=auto(None, None), steps=600, **traffic)
    assert policy.knowledge()["is_guess"]
    best = max(run_fixed(k, hardware, **traffic).goodput_between(50) for k in (2, 3, 4, 6))
    assert result.goodput_between(300) > 0.93 * best


def test_predictions_of_steps_and_speedups_come_close() -> None:
    traffic = {"acceptance": GOOD, "concurrency": 2, "prompt_tokens": 16, "output_tokens": 200}
    slower = machine(target=CostCurve.of({n: 1.25 * s for n, s in zip(COSTS.target.rows, COSTS.target.seconds,
                                                                      strict=True)}))  # fmt: skip
    result, policy = run_auto(slower, steps=1500, **traffic)
    error = policy.knowledge()["target_error"]
    assert error is not None
    assert error < 0.04
    plain = run_fixed(0, slower, steps=1500, **traffic)
    measured = result.goodput_between(300) / plain.goodput_between(300)
    estimate = policy.report("r").speedup.estimate
    assert estimate == pytest.approx(measured, abs=0.08)


def test_control_windows_check_the_estimate() -> None:
    _, policy = run_auto(
        machine(), steps=4000, acceptance=GOOD, concurrency=1, prompt_tokens=16, output_tokens=5000
    )
    figure = policy.report("r").speedup
    assert figure.num_windows >= 5
    assert figure.is_checked
    assert figure.measured == pytest.approx(figure.estimate, abs=0.1)
    assert policy.report("r").note == ""


def test_until_then_it_is_called_an_estimate() -> None:
    _, policy = run_auto(
        machine(), steps=100, acceptance=GOOD, concurrency=1, prompt_tokens=16, output_tokens=500
    )
    assert "estimate not yet checked" in policy.report("r").note


def test_large_batches_on_an_accelerator_stop_speculating_where_arithmetic_binds() -> None:
    target = roofline("h100", 70, num_accelerators=8, kv_bytes_per_token=327_680)
    draft = roofline("h100", 1, num_accelerators=8, step_overhead_s=0.5e-3)
    costs = CalibratedCosts(target, {"model": draft})
    hardware = machine(target=target, draft=draft, max_num_seqs=256)
    common = {"acceptance": AcceptanceProcess(0.7), "prompt_tokens": 16, "output_tokens": 200}
    few, _ = run_auto(hardware, policy=auto(None, costs), steps=150, concurrency=4, **common)
    many, _ = run_auto(hardware, policy=auto(None, costs), steps=150, concurrency=256, **common)
    assert few.mean_draft_length("r", 60) > 2
    assert many.mean_draft_length("r", 100) < 0.5 * few.mean_draft_length("r", 60)


def test_weights_decide_who_drafts_when_rows_are_dear() -> None:
    policy = auto({"paid": RouteSettings(weight=10.0), "free": RouteSettings(weight=1.0)})
    common = {"prompt_tokens": 16, "output_tokens": 300}
    traffic = [SimulatedRoute(name, GOOD, concurrency=4, **common) for name in ("paid", "free")]
    result = Simulator(machine(), traffic, policy).run(steps=300)
    assert result.mean_draft_length("paid", 100) > 2 * result.mean_draft_length("free", 100)


def test_a_person_switches_a_route_off_and_on_for_requests_that_run() -> None:
    policy = auto({"r": RouteSettings()})
    simulator = Simulator(
        machine(), [SimulatedRoute("r", GOOD, concurrency=1, prompt_tokens=16, output_tokens=5000)], policy
    )
    simulator.run(steps=100)
    policy.set_route("r", RouteSettings(speculation="off"), by="ops", now=simulator.clock())
    simulator.run(steps=20)
    policy.set_route("r", RouteSettings(speculation="on", draft_length=2), by="ops", now=simulator.clock())
    result = simulator.run(steps=20)
    assert result.mean_draft_length("r", 100, 120) == 0.0
    # The routes' own requests say "auto", so "on" leaves them to the policy; it speculates again.
    assert result.mean_draft_length("r", 121) > 0
    found = [d for d in policy.log.recent if d.kind is EventKind.SETTING]
    assert [(d.by, d.after) for d in found] == [("ops", "off"), ("ops", "speculating")]
    assert "speculation: off" in found[0].sentence


def test_equal_traffic_gives_equal_decisions() -> None:
    def lengths() -> list[dict[str, list[int]]]:
        result, _ = run_auto(machine(), steps=200, acceptance=GOOD, concurrency=3, prompt_tokens=16)
        return [step.draft_lengths for step in result.steps]

    assert lengths() == lengths()


def test_fixed_requests_keep_their_length_beside_adaptive_ones() -> None:
    policy = auto({"auto": RouteSettings(), "fixed": RouteSettings()})
    traffic = [
        SimulatedRoute("auto", GOOD, concurrency=2, prompt_tokens=16, output_tokens=200),
        SimulatedRoute(
            "fixed", GOOD, concurrency=1, prompt_tokens=16, output_tokens=200, speculation=fixed(3)
        ),
    ]
    result = Simulator(machine(), traffic, policy).run(steps=200)
    asked = [n for step in result.steps[30:] for n in step.draft_lengths.get("fixed", [])]
    assert set(asked) <= {0, 3}
    assert asked.count(3) > 0.8 * len(asked)
