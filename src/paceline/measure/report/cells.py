"""Speed of a route at a load, without drafts and in each setting that was timed, from the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.measure.paired import Ratio, Scatter
from paceline.measure.setting import MODEL, OFF, Setting

Run = Mapping[str, Any]
"""A record of the journal: one setting's run of one turn."""


def load_figures(
    runs: Sequence[Run],
    forecast: Mapping[str, Any],
    flops_per_row: Mapping[str, int],
    scatter: Scatter | None = None,
) -> dict[str, Any]:
    """Return the figures of one route at one load.

    Args:
        runs: of that route and load, with any draft model.
        forecast: that load's part of the route's forecast.
        flops_per_row: of the target under "target", of draft models under their names ("" where it has none).
        scatter: of single runs' speedups (`scatter_of`), which intervals go by.
    """
    labels = list(dict.fromkeys(one["setting"] for one in runs if one["setting"] != OFF))
    plain = [one for one in runs if one["setting"] == OFF]
    settings = [
        _setting(label, runs, flops_per_row, _expected(label, forecast["forecasts"]), scatter)
        for label in labels
    ]
    return {
        "concurrency": forecast["concurrency"],
        "is_timed": bool(settings),
        "plain": _cell(plain) if plain else None,
        "settings": settings,
        "forecasts": [_forecast(one) for one in forecast["forecasts"]],
        "chosen": list(forecast["chosen"]),
        "num_outputs": sum(one["num_outputs"] for one in runs),
        "num_identical": sum(one["num_identical"] for one in runs),
    }


def scatter_of(runs: Sequence[Run]) -> Scatter | None:
    """Return how far speedups of single runs stray from their mean, over all routes, loads and settings; none
    where nothing was timed twice."""
    cells: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        cells.setdefault((run["route"], run["concurrency"]), []).append(run)
    return Scatter.of(
        [
            [_speed(on) / _speed(off) for on, off in _pairs(label, found)]
            for label in dict.fromkeys(one["setting"] for one in found if one["setting"] != OFF)
        ]
        for found in cells.values()
    )


def _pairs(label: str, runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return a setting's runs, each with the plain one of its turn."""
    plain = {(one["draft"], one["turn"]): one for one in runs if one["setting"] == OFF}
    return [(one, plain[one["draft"], one["turn"]]) for one in runs if one["setting"] == label]


def _expected(label: str, forecasts: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the forecast for a setting. The policy's is the best of what it may choose from, plain decoding
    among it; none where nothing of that was looked at."""
    setting, found = Setting.parse(label), {one["setting"]: one["speedup"] for one in forecasts}
    if not setting.is_auto:
        return found.get(label)
    parsed = {Setting.parse(name): float(value) for name, value in found.items()}
    own = {
        one: value
        for one, value in parsed.items()
        if set(one.drafters) <= set(setting.drafters) and (not one.needs_model or one.draft == setting.draft)
    }
    return max(1.0, *own.values()) if own else None


def _forecast(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "setting": one["setting"],
        "tokens_per_second": one["tokens_per_second"],
        "speedup": one["speedup"],
        "plain_step_ms": 1e3 * one["plain_step_s"],
        "draft_ms": 1e3 * one["draft_s"],
        "verify_ms": 1e3 * one["verify_s"],
        "break_even_acceptance": one["break_even_acceptance"],
    }


def break_even(load: Mapping[str, Any]) -> tuple[str, float | None] | None:
    """Return the drafter of the best setting in which a draft model alone drafts, and the acceptance at which
    that neither gains nor loses; none without a draft model. The acceptance is none where not even 1 would
    do."""
    for one in load["forecasts"]:
        setting = Setting.parse(one["setting"])
        if setting.drafter == MODEL:
            return MODEL + (f":{setting.draft}" if setting.draft else ""), one["break_even_acceptance"]
    return None


def _setting(
    label: str,
    runs: Sequence[Run],
    flops_per_row: Mapping[str, int],
    expected: float | None,
    scatter: Scatter | None,
) -> dict[str, Any]:
    pairs = _pairs(label, runs)
    speedup = Ratio.of([_speed(on) / _speed(off) for on, off in pairs], scatter)
    assert speedup is not None
    return {
        "setting": label,
        **_cell([on for on, _ in pairs]),
        "speedup": {"value": speedup.mean, "low": speedup.low, "high": speedup.high},
        "forecast_speedup": expected,
        "extra_flops_per_token": _extra_flops(pairs, flops_per_row),
        "plain_flops_per_token": _flops([off for _, off in pairs], flops_per_row),
    }


def _speed(run: Run) -> float:
    return float(run["num_tokens"]) / max(float(run["wall_s"]), 1e-9)


def _cell(runs: Sequence[Run]) -> dict[str, Any]:
    tokens, drafted = _sum(runs, "num_tokens"), _sum(runs, "num_drafted")
    steps, decoded = _sum(runs, "num_steps"), _sum(runs, "num_decode_steps")
    num_first = sum(len(one["ttft_s"]) for one in runs)
    accepted = _sum(runs, "num_accepted")
    return {
        "num_turns": len(runs),
        "tokens_per_second": tokens / max(_sum(runs, "wall_s"), 1e-9),
        **{f"ttft_p{p}_ms": _percentile(runs, "ttft_s", p) for p in (50, 95)},
        **{f"itl_p{p}_ms": _percentile(runs, "itl_s", p) for p in (50, 95)},
        "acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_length": (tokens - num_first) / decoded if decoded else None,
        "drafted_per_token": drafted / tokens if tokens else None,
        "wasted_per_token": (drafted - accepted) / tokens if tokens else None,
        "step_ms": {
            "draft": 1e3 * _sum(runs, "draft_s") / steps,
            "verify": 1e3 * _sum(runs, "verify_s") / steps,
            "other": 1e3 * (_sum(runs, "step_s") - _sum(runs, "draft_s") - _sum(runs, "verify_s")) / steps,
        },
    }


def _sum(runs: Sequence[Run], key: str) -> float:
    return float(sum(one[key] for one in runs))


def _percentile(runs: Sequence[Run], key: str, percentile: int) -> float | None:
    values = [value for one in runs for value in one[key]]
    return 1e3 * float(np.percentile(values, percentile)) if values else None


def _flops(runs: Sequence[Run], flops_per_row: Mapping[str, int]) -> float | None:
    """Return the floating-point operations of all rows for each output token, prompts included."""
    tokens = _sum(runs, "num_tokens")
    if not tokens:
        return None
    total = sum(
        one["target_rows"] * flops_per_row["target"] + one["draft_rows"] * flops_per_row[one["draft"] or ""]
        for one in runs
    )
    return float(total) / tokens


def _extra_flops(pairs: Sequence[tuple[Run, Run]], flops_per_row: Mapping[str, int]) -> float | None:
    on = _flops([one for one, _ in pairs], flops_per_row)
    off = _flops([one for _, one in pairs], flops_per_row)
    return None if on is None or off is None else on - off
