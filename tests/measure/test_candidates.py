"""Which settings are timed: forecasts on machines whose best setting is known."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.measure.candidates import Forecast, RouteText, crossing, mean_step, ranked, worth_timing
from paceline.measure.replay import Trace
from paceline.measure.setting import Setting
from paceline.policy.costs import CostCurve
from paceline.policy.step_costs import CalibratedCosts, StepCosts

BANDWIDTH_BOUND = CostCurve.of({1: 0.1, 32: 0.1, 512: 1.6})
"""Rows cost nothing up to 32, and 1/320 s each beyond."""


def costs(target: CostCurve = BANDWIDTH_BOUND, draft_s: float = 0.01) -> StepCosts:
    return StepCosts(CalibratedCosts(target, {"model": CostCurve.of({1: draft_s, 128: draft_s})}))


def text(matches: list[bool], suffix_agreed: int = 0, count: int = 4) -> RouteText:
    model = Trace.of_model(matches)
    agreed = [min(suffix_agreed, len(matches) - i) for i in range(len(matches))]
    suffix = Trace.of_matches([4 if suffix_agreed else 0] * len(matches), agreed)
    traces = {"model": (model,) * count, "suffix": (suffix,) * count}
    lengths = ((20, len(matches), len(matches)),) * count
    return RouteText(lengths, {**traces, "mixed": traces["model"]})


def test_where_drafts_always_stand_long_ones_of_the_model_come_first() -> None:
    best, *others = ranked(costs(), text([True] * 64), 1, 8, None)
    assert best.setting == Setting(("model",), 8)
    assert best.speedup > 3
    assert {one.setting.drafter for one in others} <= {"mixed", "suffix"}


def test_where_none_stands_everything_is_forecast_to_lose() -> None:
    found = ranked(costs(), text([False] * 64), 1, 8, None)
    assert all(one.speedup <= 1 for one in found)
    assert next(one for one in found if one.setting.drafter == "model").setting.draft_length == 1


def test_ranking_is_that_of_a_search_over_everything() -> None:
    chance = np.random.default_rng(0)
    for share in (0.3, 0.6, 0.9):
        own = text((chance.random(64) < share).tolist())
        found = ranked(costs(draft_s=0.02), own, 2, 8, None)
        speeds = {
            (drafter, k): mean_step(costs(draft_s=0.02), own, drafter, k, 2).speedup
            for drafter in own.traces
            for k in range(1, 9)
        }
        assert found[0].speedup == pytest.approx(max(speeds.values()), rel=0.1)


def test_speculation_stops_helping_where_rows_cost() -> None:
    own = text([True, True, False] * 20)
    points = crossing(costs(), own, [Setting(("model",), k) for k in (1, 2, 4, 8)])
    speedups = {n: on / plain for n, plain, on, _ in points}
    assert speedups[1] > 1.5
    assert speedups[64] < 1
    # At more clients shorter drafts are best.
    by_load = {n: Setting.parse(label).draft_length for n, _, _, label in points}
    assert by_load[1] >= by_load[12] >= by_load[64]  # type: ignore[operator]


def forecasts(**speedups: float) -> list[Forecast]:
    found = [Forecast(Setting.parse(label.replace("_", ":")), 10 * x, x) for label, x in speedups.items()]
    return sorted(found, key=lambda one: -one.speedup)


def labels(found: dict[int, list[Setting]]) -> dict[int, list[str]]:
    return {n: [one.label for one in settings] for n, settings in found.items()}


def test_the_best_the_policy_and_what_comes_close_are_timed() -> None:
    found = worth_timing(
        {1: forecasts(model_4=1.6, mixed_4=1.55, suffix_2=1.1), 8: forecasts(model_2=1.2, suffix_1=1.0)}
    )
    assert labels(found) == {1: ["auto", "model:4", "mixed:4"], 8: ["auto", "model:2"]}


def test_the_policy_is_timed_without_a_draft_model_that_brings_nothing() -> None:
    found = worth_timing({1: forecasts(suffix_4=1.3, model_2=0.8)})
    assert labels(found) == {1: ["auto:suffix", "suffix:4"]}
    assert labels(worth_timing({1: forecasts(suffix_4=1.3)})) == {1: ["auto:suffix", "suffix:4"]}


def test_where_nothing_comes_near_only_the_best_is_timed_to_show_it() -> None:
    found = worth_timing({1: forecasts(model_1=0.7, suffix_1=0.85), 8: forecasts(model_1=0.5)})
    assert labels(found) == {1: ["suffix:1"], 8: ["model:1"]}


@pytest.mark.parametrize(
    "label",
    ["off", "auto", "auto:suffix", "auto:model", "auto@small", "model:4", "mixed:3@small", "suffix:2"],
)
def test_a_setting_is_written_as_it_is_read(label: str) -> None:
    assert Setting.parse(label).label == label
