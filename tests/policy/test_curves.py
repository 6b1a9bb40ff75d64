"""Curves to simulate with: what was measured, and what data sheets say."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.policy.simulation.accelerators import (
    ACCELERATORS,
    BANDWIDTH_REACHED,
    COMPUTE_REACHED,
    LAUNCH_S,
)
from paceline.policy.simulation.curves import MEASURED, roofline
from paceline.policy.simulation.traffic import AcceptanceProcess
from paceline.policy.step_costs import CalibratedCosts
from tests.policy.scenes import auto, machine, run_auto, run_fixed


def test_a_roofline_is_flat_until_arithmetic_binds() -> None:
    curve = roofline("h100", 70, num_accelerators=8)
    read_s = 140e9 / (3350e9 * BANDWIDTH_REACHED * 8)
    assert curve.seconds_of(1) == curve.seconds_of(16) == pytest.approx(read_s + LAUNCH_S)
    row_s = 140e9 / (989e12 * COMPUTE_REACHED * 8)
    assert curve.seconds_of(1024) == pytest.approx(1024 * row_s + LAUNCH_S)
    assert read_s / row_s > 100, "the row at which they meet"


def test_four_bits_and_one_small_accelerator_cost_what_they_read() -> None:
    curve = roofline("l4", 7, bytes_per_param=0.5, kv_bytes_per_token=57_344, step_overhead_s=0.0)
    assert curve.seconds_of(1) == pytest.approx(3.5e9 / (300e9 * BANDWIDTH_REACHED))
    more = curve.seconds_of(1, context=4096) - curve.seconds_of(1)
    assert more == pytest.approx(4096 * 57_344 / (300e9 * BANDWIDTH_REACHED))


@pytest.mark.parametrize("arguments", [("h200x", 7.0), ("h100", 0.0), ("h100", -1.0)])
def test_what_has_no_roofline(arguments: tuple[str, float]) -> None:
    with pytest.raises(ConfigError):
        roofline(*arguments)


def test_the_measured_cpu_is_no_data_sheet_and_gives_back_what_was_measured() -> None:
    curve = roofline("cpu-zen3-2-cores", 1.54, bytes_per_param=980e6 / 1.54e9)
    assert curve.seconds_of(1) == pytest.approx(
        MEASURED["qwen2.5-coder-1.5b-q4_k_m"].curve.seconds_of(1), rel=0.05
    )
    assert curve.seconds_of(8) == pytest.approx(
        MEASURED["qwen2.5-coder-1.5b-q4_k_m"].curve.seconds_of(8), rel=0.1
    )


def test_every_figure_has_its_source() -> None:
    assert {"a100-40gb", "a100-80gb", "h100", "h200", "l4", "rtx-4090"} <= set(ACCELERATORS)
    assert all("https://" in one.source or "benchmarks/" in one.source for one in ACCELERATORS.values())
    assert all(one.machine for one in MEASURED.values())


def test_on_the_measured_pair_one_stream_gains_and_sixteen_do_not() -> None:
    target, draft = (MEASURED[f"qwen2.5-coder-{name}"].curve for name in ("1.5b-q4_k_m", "0.5b-int4"))
    costs = CalibratedCosts(target, {"model": draft})
    hardware = machine(target=target, draft=draft)
    traffic = {"acceptance": AcceptanceProcess(0.95), "prompt_tokens": 16, "output_tokens": 100}
    for concurrency, least in ((1, 1.4), (16, 0.97)):
        plain = run_fixed(0, hardware, steps=150, concurrency=concurrency, **traffic)
        result, _ = run_auto(
            hardware, policy=auto(None, costs), steps=150, concurrency=concurrency, **traffic
        )
        assert result.goodput_between(50) > least * plain.goodput_between(50)
    assert result.mean_draft_length("r", 100) < 0.1
