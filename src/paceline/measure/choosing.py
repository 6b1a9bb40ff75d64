"""What a route's texts and the step costs forecast, as one record: every load's best settings, what is worth
timing, where speculation breaks even, and the load at which it stops helping."""

from __future__ import annotations

from typing import Any

from paceline.measure.candidates import (
    LENGTHS,
    Forecast,
    RouteText,
    crossing,
    mean_step,
    ranked,
    worth_timing,
)
from paceline.measure.options import MeasureOptions
from paceline.measure.setting import Setting
from paceline.planner.break_even import break_even_acceptance
from paceline.policy.step_costs import StepCosts


def forecast_record(
    options: MeasureOptions, costs: StepCosts, route: str, text: RouteText, draft: str | None
) -> dict[str, Any]:
    """Return the forecasts for a route with one draft model, as they are kept.

    Args:
        options: loads and the longest draft.
        costs: of steps, with that draft model.
        route: its name.
        text: its answers, and what drafters would have drafted for them.
        draft: name of the draft model, if it has one.
    """
    most = options.max_draft_length
    by_load = {n: ranked(costs, text, n, most, draft) for n in options.concurrency}
    every = {one.setting.drafters: one.setting for found in by_load.values() for one in found}
    fixed = [
        Setting(one.drafters, length, one.draft)
        for one in every.values()
        for length in LENGTHS
        if length <= most
    ]
    return {
        "route": route,
        "draft": draft,
        "loads": [_load(costs, text, n, found) for n, found in by_load.items()],
        "chosen": {n: [one.label for one in found] for n, found in worth_timing(by_load).items()},
        "crossing": [list(point) for point in crossing(costs, text, fixed)],
    }


def _load(costs: StepCosts, text: RouteText, concurrency: int, found: list[Forecast]) -> dict[str, Any]:
    return {"concurrency": concurrency, "forecasts": [_one(costs, text, concurrency, one) for one in found]}


def _one(costs: StepCosts, text: RouteText, concurrency: int, one: Forecast) -> dict[str, Any]:
    length = one.setting.draft_length or 1
    step = mean_step(costs, text, one.setting.drafter, length, concurrency)
    return {
        "setting": one.setting.label,
        "tokens_per_second": one.tokens_per_second,
        "speedup": one.speedup,
        "plain_step_s": step.plain_s,
        "draft_s": step.draft_s,
        "verify_s": step.verify_s,
        "break_even_acceptance": break_even_acceptance(length, step.step_s, step.plain_s),
    }
