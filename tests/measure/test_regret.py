"""Ratios of paired runs, and how the best fixed setting is chosen without counting its luck."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.measure.regret import (
    Ratio,
    Run,
    RunFile,
    Scatter,
    geometric_mean,
    in_turns,
    parse_settings,
    summarise,
)

NAMES = ("model", "suffix", "mixed")


def run(setting: str, repeat: int, speed: float, **more: object) -> Run:
    same = None if setting == "off" else 3
    return Run("code", 4, setting, repeat, speed, 3, same, **more)  # type: ignore[arg-type]


def test_a_ratio_is_a_geometric_mean_with_an_interval() -> None:
    assert Ratio.of([]) is None
    alone = Ratio.of([1.5])
    assert alone == Ratio(pytest.approx(1.5), None, None)  # type: ignore[arg-type]
    ratio = Ratio.of([1.0, 1.21])
    assert ratio is not None
    assert ratio.mean == pytest.approx(1.1)
    # Two logarithms 0.1906 apart: sd 0.1348, of the mean 0.0953, times 12.71.
    assert ratio.high == pytest.approx(1.1 * math.exp(12.71 * math.log(1.21) / 2), rel=1e-3)


def test_scatter_is_pooled_over_cells() -> None:
    assert Scatter.of([]) is None
    assert Scatter.of([[[1.2]], [[0.9], [1.1]]]) is None
    # Pairs 0.2 and 0.1 apart in their logarithms: variances 0.02 and 0.005, of one degree of freedom each.
    wide, narrow = [1.0, math.exp(0.2)], [2.0, 2.0 * math.exp(0.1)]
    scatter = Scatter.of([[wide], [narrow], [[1.0]]])
    assert scatter is not None
    assert scatter.freedom == 2
    assert scatter.deviation == pytest.approx(math.sqrt(0.0125))
    # Settings of one cell share their plain runs: their mean counts, as one.
    assert Scatter.of([[wide, narrow]]) == Scatter(pytest.approx(math.sqrt(0.0125)), 1)  # type: ignore[arg-type]
    alone = Ratio.of([1.5], scatter)
    assert alone is not None
    assert alone.high == pytest.approx(1.5 * math.exp(4.30 * math.sqrt(0.0125)))
    assert alone.low == pytest.approx(1.5 * math.exp(-4.30 * math.sqrt(0.0125)))


def test_intervals_hold_what_they_say() -> None:
    # Of cells whose scatter is the same, 95 % of the intervals have the true ratio in them.
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        cells = [np.exp(rng.normal(0.1, 0.08, 2)).tolist() for _ in range(6)]
        scatter = Scatter.of([[cell] for cell in cells])
        ratios = [Ratio.of(cell, scatter) for cell in cells]
        held += sum(one.low <= math.exp(0.1) <= one.high for one in ratios if one and one.low and one.high)
    assert 0.93 <= held / 1800 <= 0.97


def test_the_best_fixed_setting_is_chosen_on_odd_repeats_and_compared_on_even_ones() -> None:
    # On odd repeats model:2 is ahead; on even ones model:4 would be, which must not matter.
    speeds = {
        "off": (10, 10, 10, 10),
        "auto": (16, 18, 16, 18),
        "model:2": (20, 15, 20, 15),
        "model:4": (12, 30, 12, 30),
    }
    runs = [run(name, n, speed) for name, by in speeds.items() for n, speed in enumerate(by, 1)]
    (cell,) = summarise(runs)
    assert cell.best_fixed == "model:2"
    assert cell.auto_over_best_fixed.mean == pytest.approx(18 / 15)
    assert cell.auto_over_off.mean == pytest.approx(math.sqrt(1.6 * 1.8))
    assert cell.auto_over_off.low < 1.7 < cell.auto_over_off.high
    assert (cell.num_outputs, cell.num_identical) == (36, 36)


def test_off_may_be_the_best_fixed_setting() -> None:
    (cell,) = summarise([run("off", 1, 10), run("auto", 1, 9), run("model:2", 1, 5)])
    assert cell.best_fixed == "off"
    assert cell.auto_over_best_fixed is None


def test_the_json_of_a_cell() -> None:
    runs = [
        run("off", 1, 10), run("off", 2, 10),
        run("auto", 1, 15, predicted_speedup=1.4, state="speculating"),
        run("auto", 2, 15, predicted_speedup=1.6, state="paused: load", mean_draft_length=2.0),
    ]  # fmt: skip
    found = summarise(runs)[0].to_json()
    names = "route concurrency auto_over_off auto_over_off_upper auto_over_best_fixed best_fixed state"
    assert {*names.split(), "predicted_speedup", "measured_speedup"} <= set(found)
    assert found["predicted_speedup"] == pytest.approx(1.5)
    assert found["measured_speedup"] == pytest.approx(1.5)
    assert found["state"] == "paused: load"
    json.dumps(found)


def test_settings_take_turns_at_being_first() -> None:
    settings = parse_settings("off,auto,model:2,suffix:4", NAMES)
    firsts = {next(in_turns(settings, repeat, 0)).label for repeat in range(4)}
    assert firsts == {"off", "auto", "model:2", "suffix:4"}
    assert {mode.label for mode in in_turns(settings, 3, 5)} == firsts
    assert [mode.speculation.enabled for mode in settings] == [False, "auto", True, True]


@pytest.mark.parametrize(
    "text",
    ["off", "auto,model:2", "off,auto,model", "off,auto,model:0", "off,auto,magic:2", "off,off,auto", ""],
)
def test_settings_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Write --settings off,auto,model:2,model:4,suffix:4"):
        parse_settings(text, NAMES)


def test_runs_are_kept_and_gone_on_from(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first = RunFile(path, {"target": "a", "limit": 3})
    first.add(run("off", 1, 10.0))
    again = RunFile(path, {"target": "a", "limit": 3})
    assert again.runs == [run("off", 1, 10.0)]
    assert again.has("code", 4, "off", 1)
    assert not again.has("code", 4, "off", 2)
    with pytest.raises(ConfigError, match="whose runs have another limit"):
        RunFile(path, {"target": "a", "limit": 4})
    path.write_text("what?\n")
    with pytest.raises(ConfigError, match="a file that an earlier run of this command wrote"):
        RunFile(path, {"target": "a", "limit": 3})
    assert RunFile(None, {}).runs == []


def test_cells_without_a_ratio_do_not_count_in_the_mean() -> None:
    assert geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([None]) is None
