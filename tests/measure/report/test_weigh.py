"""Timed speeds and forecasts, weighed by how far each strays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.measure.paired import Scatter
from paceline.measure.report.recommend import choose
from paceline.measure.report.weigh import LEAST_DEVIATION, Forecasts, weigh

ALONE = {"low": None, "high": None}


def load(measured: float, forecast: float | None, turns: int = 1, **more: Any) -> dict[str, Any]:
    one = {"setting": "auto", "speedup": {"value": measured, **ALONE}, "num_turns": turns}
    return {"concurrency": 1, "settings": [{**one, "forecast_speedup": forecast}], **more}


def weighed(routes: dict[str, dict[str, Any]], deviation: float) -> dict[str, float]:
    found = weigh({name: [one] for name, one in routes.items()}, Scatter(deviation, 10))
    return {name: loads[0]["settings"][0]["weighed"]["value"] for name, loads in found.items()}


def test_nothing_is_weighed_where_no_scatter_is_known_or_runs_do_not_scatter() -> None:
    loads = {"chat": [load(0.9, 1.2)]}
    for scatter in (None, Scatter(0.0, 3)):
        assert weigh(loads, scatter)["chat"][0]["settings"][0]["weighed"] == {"value": 0.9, **ALONE}


def test_what_has_no_forecast_stays_as_timed() -> None:
    assert weighed({"chat": load(0.9, None), "code": load(1.2, 1.2)}, 0.2)["chat"] == 0.9


def test_a_single_disturbed_run_is_drawn_to_its_forecast_and_many_runs_are_not() -> None:
    others = {f"r{i}": load(1.1, 1.1, 4) for i in range(8)}
    once = weighed({**others, "rag": load(0.85, 1.05)}, 0.15)["rag"]
    often = weighed({**others, "rag": load(0.85, 1.05, 60)}, 0.15)["rag"]
    assert 0.98 < once < 1.05
    assert 0.85 < often < 0.91


def test_what_forecasts_are_off_by_everywhere_is_taken_from_them() -> None:
    found = weighed({f"r{i}": load(1.0, 1.25, 30) for i in range(8)}, 0.1)
    assert list(found.values()) == pytest.approx([1.0] * 8)


def test_a_single_setting_says_nothing_of_forecasts_and_stays_as_timed() -> None:
    one = load(0.9, 1.2)
    one["settings"][0]["speedup"] = {"value": 0.9, "low": 0.7, "high": 1.2}
    found = weigh({"chat": [one]}, Scatter(0.15, 1))["chat"][0]["settings"][0]
    assert found["weighed"] == found["speedup"]


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    draw = np.random.default_rng(11)
    held = []
    for _ in range(200):
        true = draw.normal(0.1, 0.1, 8)
        measured, forecast = true + draw.normal(0, 0.12, 8), true + draw.normal(0.05, 0.1, 8)
        pairs = enumerate(zip(measured, forecast, strict=True))
        routes = {str(i): [load(math.exp(m), math.exp(f))] for i, (m, f) in pairs}
        deviation = 0.12 * math.sqrt(draw.chisquare(6) / 6)
        for value, loads in zip(true, weigh(routes, Scatter(deviation, 6)).values(), strict=True):
            one = loads[0]["settings"][0]["weighed"]
            held.append(one["low"] <= math.exp(value) <= one["high"])
    assert 0.88 < np.mean(held) < 0.99


def test_bias_and_deviation_of_forecasts_are_found_again() -> None:
    draw = np.random.default_rng(3)
    variance = np.full(400, 0.1**2)
    found = -0.05 + draw.normal(0, 0.12, 400) + draw.normal(0, 0.1, 400)
    known = Forecasts.of(list(zip(found.tolist(), variance.tolist(), strict=True)))
    assert known is not None
    assert known.bias == pytest.approx(-0.05, abs=0.02)
    assert math.sqrt(known.variance) == pytest.approx(0.12, abs=0.02)


def test_forecasts_that_agree_by_luck_are_not_taken_for_certain() -> None:
    known = Forecasts.of([(0.01, 0.04), (0.012, 0.04)])
    assert known is not None
    assert known.variance == pytest.approx(LEAST_DEVIATION**2 + 1 / (2 / (0.04 + LEAST_DEVIATION**2)))


def test_weighed_speeds_are_nearer_to_the_truth_than_either_source() -> None:
    draw = np.random.default_rng(5)
    errors: dict[str, list[float]] = {"measured": [], "forecast": [], "weighed": []}
    for _ in range(60):
        true = draw.normal(0.1, 0.1, 14)
        measured, forecast = true + draw.normal(0, 0.12, 14), true + 0.05 + draw.normal(0, 0.1, 14)
        routes = {
            str(i): load(math.exp(m), math.exp(f))
            for i, (m, f) in enumerate(zip(measured, forecast, strict=True))
        }
        both = np.log(list(weighed(routes, 0.12).values()))
        for name, one in (("measured", measured), ("forecast", forecast), ("weighed", both)):
            errors[name] += list((one - true) ** 2)
    mean = {name: math.sqrt(sum(found) / len(found)) for name, found in errors.items()}
    assert mean["weighed"] < 0.9 * min(mean["measured"], mean["forecast"])


def test_one_slow_turn_does_not_keep_a_route_from_what_is_forecast_to_gain() -> None:
    more = {"is_timed": True, "chosen": ["auto"], "forecasts": []}
    routes = {f"r{i}": [load(1.2, 1.2, 4, **more)] for i in range(8)} | {"rag": [load(0.94, 1.2, **more)]}
    alone = weigh(routes, None)["rag"]
    together = weigh(routes, Scatter(0.15, 24))["rag"]
    assert choose(alone, 8, {}).setting.is_off
    chosen = choose(together, 8, {})
    assert chosen.setting.is_auto
    assert "measured, weighed with forecasts" in chosen.reason
