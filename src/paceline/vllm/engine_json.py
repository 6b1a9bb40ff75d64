"""Counts and reports as plain values and back, without loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from paceline.metrics.counts import Counts, DraftCounts, RouteCounts
from paceline.metrics.histogram import Histogram
from paceline.policy.acceptance import AcceptanceFigure
from paceline.policy.counterfactual import SpeedupFigure
from paceline.policy.reports import RouteReport
from paceline.policy.states import PauseReason, RouteState

_TOTALS = ("num_steps", "step_s", "draft_s", "verify_s", "num_stalls")
_HISTOGRAMS = ("draft_lengths", "ttft", "itl", "duration")
_ROUTE_TOTALS = (
    "num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "num_verify_steps", "num_fallbacks",
    "recent_steps", "recent_tokens",
)  # fmt: skip


def counts_to_json(counts: Counts) -> dict[str, Any]:
    """Return counts as plain values."""
    return {
        **{name: getattr(counts, name) for name in _TOTALS},
        "decisions": [[*key, number] for key, number in counts.decisions.items()],
        "routes": {name: _route_to_json(route) for name, route in counts.routes.items()},
    }


def counts_from_json(value: Mapping[str, Any]) -> Counts:
    """Return the counts of plain values; of an observer that is not asked to count on.

    Raises:
        KeyError, TypeError, ValueError: they are none.
    """
    counts = Counts()
    for name in _TOTALS:
        setattr(counts, name, value[name])
    counts.decisions = Counter(
        {(route, kind, after): number for route, kind, after, number in value["decisions"]}
    )
    counts.routes = {name: _route_from_json(route) for name, route in value["routes"].items()}
    return counts


def _route_to_json(route: RouteCounts) -> dict[str, Any]:
    return {
        **{name: getattr(route, name) for name in _ROUTE_TOTALS},
        "num_answers": dict(route.num_answers),
        "drafts": {
            name: {field.name: getattr(drafts, field.name) for field in fields(drafts)}
            for name, drafts in route.drafts.items()
        },
        **{name: getattr(route, name).to_json() for name in _HISTOGRAMS},
    }


def _route_from_json(value: Mapping[str, Any]) -> RouteCounts:
    route = RouteCounts(
        num_answers=Counter(value["num_answers"]),
        drafts={name: DraftCounts(**drafts) for name, drafts in value["drafts"].items()},
    )
    for name in _ROUTE_TOTALS:
        setattr(route, name, value[name])
    for name in _HISTOGRAMS:
        setattr(route, name, Histogram.from_json(value[name]))
    return route


def report_from_json(value: Mapping[str, Any]) -> RouteReport:
    """Return the report that `RouteReport.to_json` gave.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    reason = value["reason"]
    changed: dict[str, Any] = {
        "state": RouteState(value["state"]),
        "reason": None if reason is None else PauseReason(reason),
        "acceptance": tuple(
            AcceptanceFigure(**{**one, "by_position": tuple(one["by_position"]),
                                "borrowed_from": tuple(one["borrowed_from"])})
            for one in value["acceptance"]
        ),
        "draft_lengths": tuple(value["draft_lengths"]),
        "speedup": SpeedupFigure(**{key: n for key, n in value["speedup"].items() if key != "is_checked"}),
    }  # fmt: skip
    names = (field.name for field in fields(RouteReport))
    return RouteReport(**{name: changed[name] if name in changed else value[name] for name in names})
