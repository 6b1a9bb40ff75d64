"""The tables of a report, as text: one list for the page, of which the terminal shows the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.measure.report.cells import break_even
from paceline.measure.report.require import served
from paceline.measure.setting import Setting

NONE = "–"
POSITIONS = 8
LENGTHS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text below a header; the first cell of a row names it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def routes_table(report: Mapping[str, Any]) -> Table:
    """Return what each route should be served with, and what that did."""
    loads = report["concurrency"]
    rows = []
    for route in report["routes"]:
        found = route["recommendation"]
        forecast = {one["concurrency"]: one["value"] for one in found["speedups"]}
        timed = {
            load["concurrency"]: interval(one["speedup"], times)
            for load in route["loads"]
            for one in load["settings"]
            if one["setting"] == found["setting"]
        }
        star = "" if found["is_measured"] else " (forecast)"
        rows.append(
            [
                route["name"],
                served_as(found),
                *(timed.get(n, times(forecast.get(n)) + star) for n in loads),
                stops_at(route),
                f"{route['num_identical']} of {route['num_outputs']}",
            ]
        )
    columns = [
        "Route",
        "Serve with",
        *(f"Speed at {clients(n)}" for n in loads),
        "Stops helping at",
        "Identical",
    ]
    note = (
        "Speed: tokens per second as served, over plain decoding in the same minutes, in brackets the 95 % "
        "interval. Identical: answers that were timed whose every token is that of the plain run."
    )
    return Table("What to serve", columns, rows, note)


def served_as(recommendation: Mapping[str, Any]) -> str:
    """Return a recommended setting in words."""
    setting = Setting.parse(recommendation["setting"])
    route = recommendation["route"]
    if setting.is_off:
        return "off: do not speculate"
    names = " and ".join(route["drafters"])
    if setting.is_auto:
        return f"auto: {names}, up to {route['max_draft_length']}"
    return f"on: {names}, always {route['draft_length']}"


def stops_at(route: Mapping[str, Any]) -> str:
    """Return the load at which a route's best setting is no faster than plain decoding."""
    crossing = route["crossing"]
    if crossing["measured"] is not None:
        found = crossing["measured"]
        return "any load" if found <= 1 else f"{found:.1f} clients"
    loads = [load["concurrency"] for load in route["loads"] if load["is_timed"]]
    text = crossing["forecast"]
    if text is None:
        return f"no load up to {crossing['most_forecast']} (forecast)"
    if loads and text <= max(loads):
        return f"beyond {clients(max(loads))}"
    return ("any load" if text <= 1 else f"{text:.0f} clients") + " (forecast)"


def tables(report: Mapping[str, Any]) -> list[Table]:
    """Return all tables behind the first."""
    return [
        Table("Speed, without and with drafts", _SPEED, list(_speed(report)), _SPEED_NOTE),
        Table("How often drafts stand", _ACCEPTED, list(_acceptance(report)), _ACCEPTED_NOTE),
        Table(
            "Acceptance by position",
            ["Route, drafter", *(f"{place}" for place in range(1, POSITIONS + 1))],
            list(_positions(report)),
            f"Accepted of drafted at each place of drafts of {report['max_draft_length']}, in brackets the "
            "95 % interval.",
        ),
        Table("What it computes", _COMPUTED, list(_computed(report)), _COMPUTED_NOTE),
        Table("The texts", _TEXTS, list(_texts(report)), _texts_note(report)),
        Table(
            "Memory", _MEMORY, list(_memory(report)), "KV as this engine holds it; weights as in the files."
        ),
    ]


_SPEED = (
    "Route, load",
    "Setting",
    "Tokens/s",
    "Speed",
    "Forecast",
    "Weighed",
    "TTFT ms",
    "ITL ms",
    "Tokens a step",
    "Runs",
)
_SPEED_NOTE = (
    "Speed is a ratio to plain decoding: the geometric mean of runs that took turns, in brackets the 95 % "
    "interval (Student's t, by the scatter of all runs timed here together). Weighed: speed and forecast by "
    "the inverse of their variances, which is what is recommended by. TTFT: time to the first token, "
    "ITL: between tokens; median / 95th percentile."
)


def _speed(report: Mapping[str, Any]) -> Iterator[list[str]]:
    for route, load in _loads(report):
        cells = [{**load["plain"], "setting": "off", "speedup": None}] if load["plain"] else []
        for cell in [*cells, *load["settings"]]:
            is_served = cell["setting"] == route["recommendation"]["setting"]
            yield [
                f"{route['name']}, {clients(load['concurrency'])}",
                cell["setting"] + (" (served)" if is_served else ""),
                f"{cell['tokens_per_second']:.1f}",
                NONE if cell["speedup"] is None else interval(cell["speedup"], times),
                times(cell.get("forecast_speedup")),
                NONE if cell["speedup"] is None else interval(cell["weighed"], times),
                f"{number(cell['ttft_p50_ms'])} / {number(cell['ttft_p95_ms'])}",
                f"{number(cell['itl_p50_ms'])} / {number(cell['itl_p95_ms'])}",
                number(cell["acceptance_length"], 2),
                str(cell["num_turns"]),
            ]
        if not cells:
            for one in load["forecasts"]:
                yield [
                    f"{route['name']}, {clients(load['concurrency'])}",
                    one["setting"], NONE, NONE, times(one["speedup"]), NONE, NONE, NONE, NONE, "not timed",
                ]  # fmt: skip


_ACCEPTED = ("Route, drafter", "Tokens guessed", *(f"Tokens a step, k = {k}" for k in LENGTHS))
_ACCEPTED_NOTE = (
    "From one reading of the plain answers by each drafter. Tokens guessed: share of places where a first "
    "draft would have stood. Tokens a step: acceptance length at a fixed draft length k, the target's own "
    "token counted. In brackets 95 % intervals, by drawing prompts again (bootstrap)."
)


def _acceptance(report: Mapping[str, Any]) -> Iterator[list[str]]:
    for route in report["routes"]:
        for one in route["drafters"]:
            by_length = {at["draft_length"]: at["acceptance_length"] for at in one["by_length"]}
            yield [
                f"{route['name']}, {one['drafter']}",
                interval(one["agreement"], percent),
                *(interval(by_length.get(k), lambda value: number(value, 2)) for k in LENGTHS),
            ]


def _positions(report: Mapping[str, Any]) -> Iterator[list[str]]:
    for route in report["routes"]:
        for one in route["drafters"]:
            cells = [interval(at["acceptance"], lambda value: number(value, 2)) for at in one["by_position"]]
            cells = cells[:POSITIONS]
            yield [f"{route['name']}, {one['drafter']}", *cells, *[NONE] * (POSITIONS - len(cells))]


_COMPUTED = (
    "Route, load", "Setting", "Drafted a token", "Wasted a token", "Extra compute a token",
    "Break-even acceptance", "Best fixed k",
)  # fmt: skip
_COMPUTED_NOTE = (
    "Drafted and wasted: drafted tokens, and those of them that fell, for each output token. Extra compute: "
    "floating-point operations of target and draft model for each output token beyond plain decoding of the "
    "same batches, 2 for each weight and row, attention left out. Break-even acceptance: what every token "
    "that the draft model drafts must stand with for its best fixed length to pay, by step costs."
)


def _computed(report: Mapping[str, Any]) -> Iterator[list[str]]:
    for route, load in _loads(report):
        label = route["recommendation"]["setting"]
        cell = served(load, label) or {}
        extra, plain = cell.get("extra_flops_per_token"), cell.get("plain_flops_per_token")
        needed = break_even(load)
        share = f" (+{extra / plain:.0%})" if extra is not None and plain else ""
        yield [
            f"{route['name']}, {clients(load['concurrency'])}",
            label,
            number(cell.get("drafted_per_token"), 2),
            number(cell.get("wasted_per_token"), 2),
            (NONE if extra is None else f"{extra / 1e9:.1f} GFLOP") + share,
            NONE if needed is None else "never" if needed[1] is None else number(needed[1], 2),
            load["forecasts"][0]["setting"],
        ]


_TEXTS = ("Route", "Measured", "Prompt tokens", "Output tokens", "Cut at the cap")


def _texts(report: Mapping[str, Any]) -> Iterator[list[str]]:
    for route in report["routes"]:
        prompt, output = route["prompt_tokens"], route["output_tokens"]
        yield [
            route["name"],
            f"{route['num_prompts']} of {route['num_in_traffic']}",
            f"{prompt['p50']:.0f} / {prompt['p90']:.0f}",
            " / ".join(f"{output[q]:.0f}" for q in ("p10", "p50", "p90", "p100")),
            percent(route["cut_share"]),
        ]


def _texts_note(report: Mapping[str, Any]) -> str:
    traffic = report["traffic"]
    left = "; ".join(f"{one['num_lines']} {one['reason']}" for one in traffic["left_out"])
    return (
        "Prompt tokens: median / 90th percentile. Output tokens: 10th percentile / median / 90th / longest, "
        f"at most {traffic['max_tokens']}." + (f" Left out: {left}." if left else "")
    )


_MEMORY = ("Model", "Weights", "KV a token", "Weights take the room of")


def _memory(report: Mapping[str, Any]) -> Iterator[list[str]]:
    memory = report["memory"]
    yield [
        f"target {short(report['target']['name'])}", size(memory["target_weight_bytes"]),
        size(memory["target_kv_bytes_per_token"]), NONE,
    ]  # fmt: skip
    names = {one["draft"]: one["name"] for one in report["drafts"]}
    for one in memory["drafts"]:
        yield [
            f"draft {short(names[one['draft']])}",
            size(one["weight_bytes"]),
            f"{size(one['kv_bytes_per_token'])} (+{one['kv_growth']:.0%})",
            f"{one['weights_in_sequences']:.0f} sequences of {memory['sequence_tokens']} tokens"
            if one["weights_in_sequences"] is not None
            else NONE,
        ]


def _loads(report: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for route in report["routes"]:
        for load in route["loads"]:
            yield route, load


def clients(concurrency: int) -> str:
    """Return a load in words."""
    return "1 client" if concurrency == 1 else f"{concurrency} clients"


def times(value: float | None) -> str:
    """Return a ratio of speeds."""
    return NONE if value is None else f"{value:.2f}x"


def percent(value: float | None) -> str:
    """Return a share."""
    return NONE if value is None else f"{value:.0%}"


def number(value: float | None, digits: int = 0) -> str:
    """Return a number with so many digits behind the point."""
    return NONE if value is None else f"{value:.{digits}f}"


def size(num_bytes: float) -> str:
    """Return bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} GB"


def interval(found: Mapping[str, Any] | None, form: Any) -> str:
    """Return a figure with its interval."""
    if found is None:
        return NONE
    text = str(form(found["value"]))
    return text if found["low"] is None else f"{text} ({form(found['low'])} to {form(found['high'])})"


def short(name: str) -> str:
    """Return a model's name without its folder."""
    return name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
