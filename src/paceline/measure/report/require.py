"""Gates on a report's figures: `chat.speedup>=1.2`, `code.speedup@8>=1`, `*.identical==1`.

    REQUIREMENT = ROUTE "." FIGURE [ "@" CLIENTS ] OPERATOR NUMBER
    ROUTE       = a route's name, or * for every one
    OPERATOR    = >= | > | <= | < | ==

Figures are of the setting that is recommended, plain decoding included. Without @CLIENTS, `speedup` is the
geometric mean over the loads, and the others are of the lowest load."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigError
from paceline.measure.setting import OFF

_FORM = re.compile(
    r"\s*(\*|[A-Za-z0-9_.-]+)\.([a-z0-9_]+)(?:@(\d+))?\s*(>=|<=|==|>|<)\s*(-?\d+(?:\.\d+)?)\s*"
)
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": math.isclose,
}  # fmt: skip
OF_LOADS = (
    "speedup", "tokens_per_second", "ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p95_ms",
    "acceptance_rate", "acceptance_length", "drafted_per_token", "wasted_per_token", "extra_flops_per_token",
)  # fmt: skip
OF_ROUTES = ("identical", "break_even_concurrency", "agreement")
FIGURES = (*OF_LOADS, *OF_ROUTES)
EVERY = "*"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One gate."""

    text: str
    route: str
    figure: str
    concurrency: int | None
    operator: str
    limit: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A gate on one route."""

    requirement: Requirement
    route: str
    value: float | None
    """None where it was not measured, and then the gate is not met."""

    @property
    def is_met(self) -> bool:
        """Whether the figure is as required."""
        one = self.requirement
        return self.value is not None and _OPERATORS[one.operator](self.value, one.limit)


def parse(text: str) -> Requirement:
    """Return a requirement as it is written on the command line.

    Raises:
        ConfigError: it is spelt wrong, or names no figure.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(
            given=f"--require {text}",
            expected="ROUTE.FIGURE[@CLIENTS] with >=, >, <=, < or == and a number",
            remedy='Write --require "chat.speedup>=1.2" or "*.identical==1", in quotes',
        )
    route, figure, load, sign, limit = match.groups()
    if figure not in FIGURES or (load is not None and figure not in OF_LOADS):
        known = OF_LOADS if load is not None else FIGURES
        raise ConfigError(
            given=f"figure {figure!r} of --require {text}",
            expected="one of " + ", ".join(known),
            remedy="Correct its name" + ("" if load is None else ", or leave @CLIENTS out"),
        )
    return Requirement(text.strip(), route, figure, None if load is None else int(load), sign, float(limit))


def check_names(requirements: Sequence[Requirement], routes: Sequence[str], loads: Sequence[int]) -> None:
    """Refuse, before anything is measured, requirements on what will not be there.

    Raises:
        ConfigError: a route or a load is not measured.
    """
    for one in requirements:
        if one.route not in (EVERY, *routes):
            raise ConfigError(
                given=f"route {one.route!r} of --require {one.text}",
                expected="one of " + ", ".join((*routes, EVERY)),
                remedy="Correct its name",
            )
        if one.concurrency is not None and one.concurrency not in loads:
            raise ConfigError(
                given=f"{one.concurrency} clients of --require {one.text}",
                expected="one of --concurrency: " + ", ".join(map(str, loads)),
                remedy="Correct it, or measure that load too",
            )


def verdicts(report: Mapping[str, Any], requirements: Sequence[Requirement]) -> list[Verdict]:
    """Return what a report says to each requirement, on each route that it is for."""
    return [
        Verdict(one, route["name"], _value(route, one))
        for one in requirements
        for route in report["routes"]
        if one.route in (EVERY, route["name"])
    ]


def _value(route: Mapping[str, Any], one: Requirement) -> float | None:
    if one.figure == "identical":
        return route["num_identical"] / route["num_outputs"] if route["num_outputs"] else None
    if one.figure == "break_even_concurrency":
        found = route["crossing"]["measured"]
        return math.inf if found is None and route["num_outputs"] else found
    if one.figure == "agreement":
        return max((d["agreement"]["value"] for d in route["drafters"] if d["agreement"]), default=None)
    loads = {load["concurrency"]: load for load in route["loads"]}
    label = route["recommendation"]["setting"]
    if one.figure == "speedup" and one.concurrency is None:
        found = [served(load, label) for load in loads.values()]
        known = [cell["speedup"]["value"] for cell in found if cell is not None]
        return math.exp(sum(map(math.log, known)) / len(known)) if known else None
    cell = served(loads[one.concurrency or min(loads)], label)
    if cell is None:
        return None
    value = cell["speedup"]["value"] if one.figure == "speedup" else cell.get(one.figure)
    return None if value is None else float(value)


def served(load: Mapping[str, Any], label: str) -> Mapping[str, Any] | None:
    """Return the figures of a setting at a load; none where it was not timed there."""
    if label == OFF:
        if load["plain"] is None:
            return None
        alone = {"value": 1.0, "low": 1.0, "high": 1.0}
        return {**load["plain"], "setting": OFF, "speedup": alone, "extra_flops_per_token": 0.0}
    found: Mapping[str, Any] | None = next((one for one in load["settings"] if one["setting"] == label), None)
    return found
