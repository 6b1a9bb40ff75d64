"""The one page in words: what it buys, what it costs, when it stops helping, how to reverse it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.measure.report.cells import break_even
from paceline.measure.report.require import served
from paceline.measure.report.tables import clients, percent, served_as, size, stops_at, times


@dataclass(frozen=True, slots=True)
class Part:
    """A heading with sentences, and commands where there are any."""

    title: str
    sentences: list[str]
    commands: list[str]


def one_page(report: Mapping[str, Any]) -> list[Part]:
    """Return the four parts, in the figures of this report."""
    return [
        Part("What it buys", _buys(report), []),
        Part("What it costs", _costs(report), []),
        Part("When it stops helping", _stops(report), []),
        _reverse(report),
    ]


def _speculating(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [route for route in report["routes"] if route["recommendation"]["speculates"]]


def _buys(report: Mapping[str, Any]) -> list[str]:
    routes = _speculating(report)
    if not routes:
        return ["Nothing, on this traffic and machine: no route gains enough to be worth a drafter.."]
    found = []
    for route in routes:
        label = route["recommendation"]["setting"]
        parts = []
        for load in route["loads"]:
            cell = served(load, label)
            if cell is not None and load["plain"] is not None:
                parts.append(
                    f"{times(cell['speedup']['value'])} at {clients(load['concurrency'])} "
                    f"({load['plain']['tokens_per_second']:.1f} to {cell['tokens_per_second']:.1f} tokens/s)"
                )
        text = ", ".join(parts) or "forecast, not timed"
        found.append(f"{route['name']}, {served_as(route['recommendation'])}: {text}.")
    plain = [one["name"] for one in report["routes"] if not one["recommendation"]["speculates"]]
    if plain:
        found.append(f"Without drafts: {', '.join(plain)}.")
    same = f"{report['num_identical']} of {report['num_outputs']}"
    found.append(f"Not a token changes: {same} timed answers are those of the plain run.")
    return found


def _costs(report: Mapping[str, Any]) -> list[str]:
    routes = _speculating(report)
    found = []
    names = {one["draft"]: one["name"] for one in report["drafts"]}
    used = {
        drafter.partition(":")[2] or None
        for route in routes
        for drafter in route["recommendation"]["route"].get("drafters", ())
        if drafter.startswith("model")
    }
    for one in report["memory"]["drafts"]:
        if one["draft"] not in used:
            continue
        text = f"Memory: {size(one['weight_bytes'])} of weights for {names[one['draft']]}"
        if one["weights_in_sequences"] is not None:
            tokens = report["memory"]["sequence_tokens"]
            text += f", the room of {one['weights_in_sequences']:.0f} sequences of {tokens} tokens"
        found.append(f"{text}; a sequence that drafts takes {one['kv_growth']:.0%} more KV.")
    if routes and not used:
        found.append("Memory: hardly any; no recommended setting needs a draft model, only earlier text.")
    for route in routes:
        cells = [served(load, route["recommendation"]["setting"]) for load in route["loads"]]
        known = [one for one in cells if one is not None and one["plain_flops_per_token"]]
        if known:
            extra = [one["extra_flops_per_token"] / one["plain_flops_per_token"] for one in known]
            wasted = [one["wasted_per_token"] or 0.0 for one in known]
            found.append(
                f"{route['name']}: {percent(max(extra))} more compute for each output token at most, and "
                f"{max(wasted):.2f} drafted tokens that fall."
            )
    return found or ["Nothing: no route is to be speculated for."]


def _stops(report: Mapping[str, Any]) -> list[str]:
    found = []
    for route in report["routes"]:
        text = f"{route['name']}: {stops_at(route)}"
        needed = break_even(route["loads"][0])
        at = clients(route["loads"][0]["concurrency"])
        guessed = {one["drafter"]: one["agreement"]["value"] for one in route["drafters"] if one["agreement"]}
        if needed is not None and needed[0] in guessed:
            stands = f"tokens of the draft model stand in {guessed[needed[0]]:.2f} of cases"
            text += f"; at {at}, {stands}, and " + (
                "would not pay if all did" if needed[1] is None else f"pay from {needed[1]:.2f} on"
            )
        found.append(text + ".")
    for route in report["routes"]:
        for one in route["mismatch"]:
            draft = one["draft"] or "the draft model"
            found.append(f"The domain of {route['name']} is not that of {draft}: {one['reason']}.")
    return found


def _reverse(report: Mapping[str, Any]) -> Part:
    routes = _speculating(report) or report["routes"]
    name = routes[0]["name"]
    return Part(
        "How to reverse it",
        [
            "A route is switched while the server runs, and a request can switch it off for itself. Answers "
            "stay the same to the token, so there is nothing to roll back but speed."
        ],
        [
            f"paceline routes set {name} speculation=off --config paceline.yaml",
            f"paceline routes reset {name} --config paceline.yaml",
            '"speculation": {"enabled": false}    # in the body of one request',
        ],
    )
