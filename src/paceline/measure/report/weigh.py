"""What was timed and what was forecast, weighed by how far each strays.

A setting that was timed once or twice on a machine with neighbours is known less well than its forecast, one
that was timed thirty times far better. Over all routes and loads together it shows how far single runs
scatter (`cells.scatter_of`) and how far forecasts lie from what is measured, beyond that scatter: the
random-effects estimate of DerSimonian and Laird (1986, Controlled Clinical Trials 7, 177-188), of the
logarithms of measured over forecast. Each setting's speed is then the mean of both sources by the inverse of
their variances. Settings that share their plain runs are taken for independent, and the policy and fixed
lengths for off by the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.measure.paired import Scatter

LEAST_DEVIATION = 0.03
"""Forecasts are never believed to be nearer than so much (natural logarithm), however well they agree with
few runs."""


@dataclass(frozen=True, slots=True)
class Forecasts:
    """How forecasts compare with what was measured, in logarithms."""

    bias: float
    """Mean of measured over forecast."""
    variance: float
    """Of a forecast that was put right by it: of single settings from the mean, and of the mean."""

    @classmethod
    def of(cls, cells: Sequence[tuple[float, float]]) -> Forecasts | None:
        """Return how forecasts did; none for fewer than two settings, of which a mean says nothing new.

        Args:
            cells: of each setting that was timed, log(measured / forecast), and the variance that the scatter
                of single runs leaves in it.
        """
        if len(cells) < 2:
            return None
        weights = [1 / variance for _, variance in cells]
        mean = _mean(cells, weights)
        spread = sum(w * (found - mean) ** 2 for w, (found, _) in zip(weights, cells, strict=True))
        whole = sum(weights)
        below = whole - sum(w * w for w in weights) / whole
        between = max((spread - (len(cells) - 1)) / below, LEAST_DEVIATION**2)
        weights = [1 / (between + variance) for _, variance in cells]
        return cls(_mean(cells, weights), between + 1 / sum(weights))


def _mean(cells: Sequence[tuple[float, float]], weights: Sequence[float]) -> float:
    return sum(w * found for w, (found, _) in zip(weights, cells, strict=True)) / sum(weights)


def weigh(
    routes: Mapping[str, Sequence[Mapping[str, Any]]], scatter: Scatter | None
) -> dict[str, list[dict[str, Any]]]:
    """Return the loads of each route with "weighed" beside the "speedup" of each setting: the same where
    nothing was timed twice, or runs do not scatter.

    Args:
        routes: figures of the loads of each (`cells.load_figures`).
        scatter: of single runs' speedups.
    """
    forecasts = None
    if scatter is not None and scatter.deviation > 0:
        forecasts = Forecasts.of(
            [
                (
                    math.log(one["speedup"]["value"] / one["forecast_speedup"]),
                    scatter.deviation**2 / one["num_turns"],
                )
                for loads in routes.values()
                for load in loads
                for one in load["settings"]
                if one["forecast_speedup"] is not None
            ]
        )
    return {
        name: [
            {
                **load,
                "settings": [
                    {**one, "weighed": _weighed(one, scatter, forecasts)} for one in load["settings"]
                ],
            }
            for load in loads
        ]
        for name, loads in routes.items()
    }


def _weighed(one: Mapping[str, Any], scatter: Scatter | None, forecasts: Forecasts | None) -> dict[str, Any]:
    if scatter is None or forecasts is None or one["forecast_speedup"] is None:
        return dict(one["speedup"])
    measured, expected = math.log(one["speedup"]["value"]), math.log(one["forecast_speedup"]) + forecasts.bias
    by_runs, by_forecast = one["num_turns"] / scatter.deviation**2, 1 / forecasts.variance
    mean = (by_runs * measured + by_forecast * expected) / (by_runs + by_forecast)
    half = scatter.t95 / math.sqrt(by_runs + by_forecast)
    return {"value": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}
