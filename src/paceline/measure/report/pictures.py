"""The pictures of a report: acceptance by position, speed over concurrency, where a step's time goes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from paceline.measure.report.require import served
from paceline.measure.report.svg import Line, bars, line_plot
from paceline.measure.report.tables import clients
from paceline.measure.setting import OFF

STAGES = {"drafting": 2, "target": 1, "other": 5}


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot with what it shows."""

    title: str
    plot: Markup
    legend: Sequence[tuple[str, int, bool]]
    """(name, colour, whether dashed)."""


def pictures(report: Mapping[str, Any]) -> list[tuple[str, str, list[Picture]]]:
    """Return (title, note, a picture for each route) of each kind."""
    routes = report["routes"]
    return [
        (
            "Acceptance by position",
            "Share of the drafts at each place that stand, with 95 % bands.",
            [found for route in routes if (found := _by_position(route)) is not None],
        ),
        (
            "Speed over concurrency",
            "Dashed: forecast from step costs and readings, brought to the height of plain decoding as "
            "timed. Points: timed. The vertical line is where the best setting falls to plain decoding.",
            [_over_load(route) for route in routes],
        ),
        (
            "Where a step's time goes",
            "Mean milliseconds of a step, plain and as served.",
            [found for route in routes if (found := _of_step(route)) is not None],
        ),
    ]


def _by_position(route: Mapping[str, Any]) -> Picture | None:
    lines = []
    for color, one in enumerate(route["drafters"], 1):
        known = [at for at in one["by_position"] if at["acceptance"] is not None]
        bands = [
            (at["acceptance"]["low"] or 0.0, at["acceptance"]["high"] or 0.0)
            for at in known
            if at["acceptance"]["low"] is not None
        ]
        points = [(float(at["position"]), at["acceptance"]["value"]) for at in known]
        if points:
            lines.append(
                Line(one["drafter"], points, color, bands=bands if len(bands) == len(points) else None)
            )
    if not lines:
        return None
    plot = line_plot(
        lines, label=f"Acceptance by position, {route['name']}", x_label="place in the draft",
        y_label="accepted of drafted", y_most=1.0,
    )  # fmt: skip
    return Picture(route["name"], plot, [(line.name, line.color, False) for line in lines])


def _over_load(route: Mapping[str, Any]) -> Picture:
    crossing, label = route["crossing"], route["recommendation"]["setting"]
    last = max([4 * max(load["concurrency"] for load in route["loads"]), 16])
    points = [one for one in crossing["points"] if one["concurrency"] <= last]
    height = _height(route)
    lines = [
        Line(
            "plain, forecast",
            [(float(p["concurrency"]), height * p["plain"]) for p in points],
            1,
            is_dashed=True,
        ),
        Line(
            "best fixed, forecast",
            [(float(p["concurrency"]), height * p["best"]) for p in points],
            2,
            is_dashed=True,
        ),
    ]
    timed = [load for load in route["loads"] if load["plain"] is not None]
    if timed:
        plain = [(float(load["concurrency"]), load["plain"]["tokens_per_second"]) for load in timed]
        lines.append(Line("plain, timed", plain, 1))
        best = [(load["concurrency"], _best(load)) for load in timed]
        lines.append(Line("best fixed, timed", [(float(n), speed) for n, speed in best if speed], 2))
        if label != OFF and label.startswith("auto"):
            found = [(load["concurrency"], served(load, label)) for load in timed]
            own = [(float(n), cell["tokens_per_second"]) for n, cell in found if cell is not None]
            lines.append(Line(f"served ({label}), timed", own, 3))
    where = crossing["measured"] if crossing["measured"] is not None else crossing["forecast"]
    mark = None if where is None else (max(1.0, where), f"{where:.1f}")
    plot = line_plot(
        lines, label=f"Tokens per second over clients, {route['name']}", x_label="clients",
        y_label="tokens / s", is_log=True, mark=mark,
    )  # fmt: skip
    return Picture(
        route["name"], plot, [(line.name, line.color, line.is_dashed) for line in lines if line.points]
    )


def _height(route: Mapping[str, Any]) -> float:
    """Return plain decoding as timed over as forecast, over the loads that were timed; 1 without any.

    Requests that start and end together, and a machine that is faster than when its steps were timed, change
    both curves alike.
    """
    forecast = {one["concurrency"]: one["plain"] for one in route["crossing"]["points"]}
    ratios = [
        load["plain"]["tokens_per_second"] / forecast[load["concurrency"]]
        for load in route["loads"]
        if load["plain"] is not None and load["concurrency"] in forecast
    ]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def _best(load: Mapping[str, Any]) -> float | None:
    fixed = [one["tokens_per_second"] for one in load["settings"] if not one["setting"].startswith("auto")]
    return max(fixed, default=None)


def _of_step(route: Mapping[str, Any]) -> Picture | None:
    rows = []
    label = route["recommendation"]["setting"]
    for load in route["loads"]:
        if load["plain"] is None:
            continue
        shown = [("plain", load["plain"])]
        cell = served(load, label) if label != OFF else next(iter(load["settings"]), None)
        if cell is not None:
            shown.append((cell["setting"], cell))
        for name, one in shown:
            step = one["step_ms"]
            parts = {"drafting": step["draft"], "target": step["verify"], "other": step["other"]}
            rows.append((f"{name}, {load['concurrency']}", parts))
    if not rows:
        return None
    at = ", ".join(clients(load["concurrency"]) for load in route["loads"])
    plot = bars(
        rows, label=f"Milliseconds of a step, {route['name']}, at {at}", unit="ms a step", colors=STAGES
    )
    return Picture(route["name"], plot, [(name, color, False) for name, color in STAGES.items()])
