"""The report of a measurement, as plain values with a versioned schema, from its journal alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from paceline.measure.journal import Journal
from paceline.measure.options import MeasureOptions
from paceline.measure.paired import Scatter
from paceline.measure.replay import Reading
from paceline.measure.report.acceptance import drafter_figures, mismatches, traces_of
from paceline.measure.report.cells import load_figures, scatter_of
from paceline.measure.report.recommend import choose
from paceline.measure.report.weigh import weigh
from paceline.measure.setting import MODEL

SCHEMA = "paceline.report"
VERSION = 1
"""Of the schema; a new one where a reader of the old would misread."""
FLOAT_BYTES, HALF_BYTES = 4, 2
_QUANTILES = (10, 50, 90, 100)


def schema() -> dict[str, Any]:
    """Return the JSON schema of reports (draft 2020-12)."""
    text = resources.files("paceline.measure.report").joinpath("schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def build(options: MeasureOptions, journal: Journal) -> dict[str, Any]:
    """Return the report of all that a journal has."""
    (setup,) = journal.of_kind("setup")
    routes = list(_routes(options, journal, setup))
    by_draft = {
        name: mismatches({one["name"]: _agreement(one, name) for one in routes}) for name in options.drafts
    }
    for one in routes:
        reasons = {name or "": found[one["name"]] for name, found in by_draft.items() if one["name"] in found}
        one["mismatch"] = [{"draft": name, "reason": reason} for name, reason in reasons.items()]
    spent = [one["spent_s"] for one in journal.of_kind("spent")]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "paceline_version": setup["paceline_version"],
        "machine": setup["machine"],
        "engine": setup["engine"],
        "target": setup["target"],
        "drafts": setup["drafts"],
        "traffic": {
            "file": str(options.traffic),
            "num_lines": setup["num_lines"],
            "left_out": [{"reason": reason, "num_lines": n} for reason, n in setup["left_out"].items()],
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "seed": options.seed,
        },
        "concurrency": list(options.concurrency),
        "max_draft_length": options.max_draft_length,
        "budget_s": options.budget_s,
        "spent_s": max(spent, default=0.0),
        "num_outputs": sum(one["num_outputs"] for one in routes),
        "num_identical": sum(one["num_identical"] for one in routes),
        "memory": _memory(setup, journal),
        "routes": routes,
    }


def _routes(options: MeasureOptions, journal: Journal, setup: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    answers: dict[str, list[dict[str, Any]]] = {}
    for record in journal.of_kind("answer"):
        if record["token_ids"]:
            answers.setdefault(record["route"], []).append(record)
    readings = [Reading.from_json(one) for one in journal.of_kind("reading")]
    flops = {"target": setup["target"]["flops_per_row"], "": 0}
    flops |= {one["draft"] or "": one["flops_per_row"] for one in setup["drafts"]}
    all_runs = list(journal.of_kind("run"))
    scatter = scatter_of(all_runs)
    names = [one for one in setup["in_traffic"] if one in answers]
    forecasts = {name: [one for one in journal.of_kind("forecast") if one["route"] == name] for name in names}
    runs = {name: [one for one in all_runs if one["route"] == name] for name in names}
    by_route = weigh({name: _loads(forecasts[name], runs[name], flops, scatter) for name in names}, scatter)
    for name, loads in by_route.items():
        found = answers[name]
        ids, limits = [one["id"] for one in found], [one["limit"] for one in found]
        own = [one for one in readings if one.request_id in set(ids)]
        traces = traces_of(own, ids, list(options.drafts))
        drafters = drafter_figures(traces, limits, options.max_draft_length)
        guessed = {one["drafter"]: one["agreement"]["value"] for one in drafters if one["agreement"]}
        choice = choose(loads, options.max_draft_length, guessed)
        yield {
            "name": name,
            "num_in_traffic": setup["in_traffic"][name],
            "num_prompts": len(found),
            "prompt_tokens": _quantiles([one["num_prompt_tokens"] for one in found]),
            "output_tokens": _quantiles([len(one["token_ids"]) for one in found]),
            "cut_share": sum(one["finish_reason"] == "length" for one in found) / len(found),
            "drafters": drafters,
            "loads": loads,
            "crossing": crossing_figures(forecasts[name], loads),
            "num_outputs": sum(one["num_outputs"] for one in loads),
            "num_identical": sum(one["num_identical"] for one in loads),
            "recommendation": choice.to_json(),
        }


def _loads(
    forecasts: Sequence[Mapping[str, Any]],
    runs: Sequence[Mapping[str, Any]],
    flops: Mapping[str, int],
    scatter: Scatter | None,
) -> list[dict[str, Any]]:
    """Return each load's figures, forecasts of several draft models joined, the best first."""
    joined: dict[int, dict[str, Any]] = {}
    for record in forecasts:
        for part in record["loads"]:
            n = part["concurrency"]
            load = {**part, "chosen": record["chosen"][str(n)]}
            known = joined.get(n, load)
            better = max(known, load, key=lambda one: float(one["forecasts"][0]["speedup"]))
            both = {one["setting"]: one for one in (*known["forecasts"], *load["forecasts"])}
            joined[n] = {
                **better,
                "forecasts": sorted(both.values(), key=lambda one: -float(one["speedup"])),
                "chosen": list(dict.fromkeys((*known["chosen"], *load["chosen"]))),
            }
    return [
        load_figures([one for one in runs if one["concurrency"] == n], load, flops, scatter)
        for n, load in joined.items()
    ]


def crossing_figures(
    forecasts: Sequence[Mapping[str, Any]], loads: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return speed over concurrency, forecast and as timed, and where speculation stops helping in both.

    The crossing is the first load at which the best setting is no faster than plain decoding, on a straight
    line over log2(clients) from the one before; none where there is no such load, 1 where none helps at all.
    """
    best: dict[int, list[Any]] = {}
    for record in forecasts:
        for point in record["crossing"]:
            if point[0] not in best or point[2] / point[1] > best[point[0]][2] / best[point[0]][1]:
                best[point[0]] = point
    points = [
        {"concurrency": n, "plain": plain, "best": on, "setting": label}
        for n, plain, on, label in sorted(best.values())
    ]
    timed = [
        (load["concurrency"], max(one["speedup"]["value"] for one in load["settings"]))
        for load in loads
        if load["settings"]
    ]
    return {
        "points": points,
        "forecast": crossing_of([(one["concurrency"], one["best"] / one["plain"]) for one in points]),
        "measured": crossing_of(timed),
        "most_forecast": max((one["concurrency"] for one in points), default=None),
    }


def crossing_of(speedups: Sequence[tuple[int, float]]) -> float | None:
    """Return the concurrency at which a speedup falls to 1; none where it does not."""
    before: tuple[int, float] | None = None
    for n, value in sorted(speedups):
        if value <= 1.0:
            if before is None:
                return float(n)
            share = (before[1] - 1.0) / max(before[1] - value, 1e-9)
            return float(2 ** (np.log2(before[0]) + share * (np.log2(n) - np.log2(before[0]))))
        before = (n, value)
    return None


def _agreement(route: Mapping[str, Any], draft: str | None) -> float | None:
    name = MODEL if draft is None else f"{MODEL}:{draft}"
    found = (one["agreement"] for one in route["drafters"] if one["drafter"] == name)
    agreement = next(found, None)
    return None if agreement is None else float(agreement["value"])


def _quantiles(values: Sequence[int]) -> dict[str, float]:
    found = np.percentile(values, _QUANTILES)
    return {f"p{q}": float(value) for q, value in zip(_QUANTILES, found, strict=True)}


def _memory(setup: Mapping[str, Any], journal: Journal) -> dict[str, Any]:
    """Return what models and their KV take, and how many sequences each draft model's weights displace."""
    each = FLOAT_BYTES if setup["engine"].get("kernels") == "reference" else HALF_BYTES
    lengths = [one["num_prompt_tokens"] + one["limit"] for one in journal.of_kind("answer")]
    length = int(np.percentile(lengths, 90)) if lengths else 0
    per_token = each * setup["target"]["kv_values_per_token"]
    return {
        "target_weight_bytes": setup["target"]["weight_bytes"],
        "target_kv_bytes_per_token": per_token,
        "sequence_tokens": length,
        "drafts": [
            {
                "draft": one["draft"],
                "weight_bytes": one["weight_bytes"],
                "kv_bytes_per_token": each * one["kv_values_per_token"],
                "kv_growth": one["kv_values_per_token"] / setup["target"]["kv_values_per_token"],
                "weights_in_sequences": one["weight_bytes"] / (length * per_token) if length else None,
            }
            for one in setup["drafts"]
        ],
    }
