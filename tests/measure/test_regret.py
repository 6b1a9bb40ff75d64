"""Slices that take turns, and how the best fixed setting is chosen without counting its luck."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest

from paceline.measure.paired import Ratio
from paceline.measure.regret import Run, Slice, summarise


def run(
    setting: str, repeat: int, *seconds: float, plain: Sequence[float] | None = None, **more: object
) -> Run:
    """Of 60 tokens a slice, 57 of them in half the time."""
    slices = [
        Slice(60, wall_s, 57, wall_s / 2, 20, None if plain is None else plain[place])
        for place, wall_s in enumerate(seconds)
    ]
    same = None if setting == "off" else 3
    return Run("code", 4, setting, repeat, tuple(slices), 3, same, **more)  # type: ignore[arg-type]


def test_a_run_s_speed_is_its_tokens_over_its_slices_seconds() -> None:
    assert run("off", 1, 2.0, 4.0).tokens_per_second == pytest.approx(120 / 6)


def test_the_best_fixed_setting_is_chosen_on_odd_repeats_and_compared_on_even_ones() -> None:
    # On odd repeats model:2 is ahead; on even ones model:4 would be, which must not matter.
    seconds = {
        "off": (10, 10, 10, 10),
        "auto": (6, 5, 6, 5),
        "model:2": (4, 8, 4, 8),
        "model:4": (9, 3, 9, 3),
    }
    (cell,) = summarise(run(name, n, s, s) for name, by in seconds.items() for n, s in enumerate(by, 1))
    assert cell.best_fixed == "model:2"
    assert cell.auto_over_best_fixed is not None
    assert cell.auto_over_best_fixed.mean == pytest.approx(8 / 5)
    # Total times, not a mean of ratios.
    assert cell.auto_over_off is not None
    assert cell.auto_over_off.mean == pytest.approx(80 / 44)
    assert cell.auto_over_off.low < 80 / 44 < cell.auto_over_off.high
    assert cell.num_slices == 8
    assert (cell.num_outputs, cell.num_identical) == (36, 36)


def test_of_a_single_repeat_odd_slices_choose_and_even_ones_are_compared() -> None:
    (cell,) = summarise(
        [run("off", 1, 10, 10, 10, 10), run("auto", 1, 6, 5, 6, 5), run("model:2", 1, 4, 8, 4, 8)]
    )
    assert cell.best_fixed == "model:2"
    assert cell.auto_over_best_fixed is not None
    assert cell.auto_over_best_fixed.mean == pytest.approx(8 / 5)
    (cell,) = summarise([run("off", 1, 10), run("auto", 1, 6), run("model:2", 1, 12)])
    assert cell.best_fixed == "off"
    assert cell.auto_over_best_fixed is None


def test_only_slices_that_both_sides_have_are_compared() -> None:
    (cell,) = summarise([run("off", 1, 10, 10), run("auto", 1, 5, 5), run("auto", 2, 1, 1)])
    assert cell.num_slices == 2
    assert cell.auto_over_off is not None
    assert cell.auto_over_off.mean == pytest.approx(2.0)


def test_a_machine_that_slows_down_slows_both_sides() -> None:
    slow = [1.0, 3.0, 1.0, 2.0, 5.0, 1.0]
    (cell,) = summarise(
        [run("off", 1, *(4 * one for one in slow)), run("auto", 1, *(2 * one for one in slow))]
    )
    assert cell.auto_over_off == Ratio(*[pytest.approx(2.0)] * 3)  # type: ignore[arg-type]


def test_cells_of_few_slices_go_by_the_scatter_of_all() -> None:
    def other(one: Run) -> Run:
        return Run("chat", *(getattr(one, name) for name in Run.__slots__[1:]))

    many = [run("off", 1, *[10.0] * 6), run("auto", 1, 5, 6, 5, 6, 5, 6)]
    few = [other(run("off", 1, 10)), other(run("auto", 1, 8))]
    (_, cell) = summarise([*many, *few])
    deviation = math.sqrt(math.log(1.2) ** 2 / 4 * 6 / 5)
    assert cell.auto_over_off is not None
    assert cell.auto_over_off.high == pytest.approx(1.25 * math.exp(2.57 * deviation))
    (cell,) = summarise(few)
    assert cell.auto_over_off == Ratio(pytest.approx(1.25), None, None)  # type: ignore[arg-type]


def test_forecasts_are_of_the_slices_that_were_measured() -> None:
    (cell,) = summarise(
        [run("off", 1, 10, 30, plain=[11, 31]), run("auto", 1, 5, 15, plain=[9, 27]), run("model:2", 1, 1, 1)]
    )
    assert cell.predicted_speedup == pytest.approx(36 / 20)
    assert cell.forecast_of_off == pytest.approx(42 / 40)


def test_the_json_of_a_cell() -> None:
    runs = [
        run("off", 1, 6, plain=[6.6]), run("off", 2, 6, plain=[6.6]),
        run("auto", 1, 4, plain=[5.6], state="speculating"),
        run("auto", 2, 4, plain=[6.4], state="paused: load", mean_draft_length=2.0),
    ]  # fmt: skip
    found = summarise(runs)[0].to_json()
    names = "route concurrency auto_over_off auto_over_off_upper auto_over_best_fixed best_fixed state"
    more = {"predicted_speedup", "measured_speedup", "decode_auto_over_off", "forecast_of_off"}
    assert {*names.split(), *more} <= set(found)
    assert found["predicted_speedup"] == pytest.approx(1.5)
    assert found["measured_speedup"] == found["auto_over_off"] == pytest.approx(1.5)
    assert found["decode_auto_over_off"] == pytest.approx(1.5)
    assert found["forecast_of_off"] == pytest.approx(1.1)
    assert found["mean_batch"] == pytest.approx(57 / 20)
    assert found["state"] == "paused: load"
    json.dumps(found)


def test_decoding_is_compared_apart_from_prompts() -> None:
    # Each answer waits 4 s for its first token, on both sides.
    off = Run("code", 1, "off", 1, (Slice(30, 10.0, 29, 6.0, 30),) * 4, 4, None)
    auto = Run("code", 1, "auto", 1, (Slice(30, 7.0, 29, 3.0, 15),) * 4, 4, 4)
    (cell,) = summarise([off, auto])
    assert cell.auto_over_off is not None
    assert cell.decode_auto_over_off is not None
    assert cell.auto_over_off.mean == pytest.approx(10 / 7)
    assert cell.decode_auto_over_off.mean == pytest.approx(2.0)
