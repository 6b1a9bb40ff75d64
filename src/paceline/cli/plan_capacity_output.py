"""What `paceline plan capacity` found, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.output import print_fields, print_json, print_table
from paceline.planner.capacity import MOST_CONCURRENCY, Crossing, LoadPoint, Workload
from paceline.planner.published import Comparison

if TYPE_CHECKING:
    from paceline.planner.simulated import Served

WORDS = {False: "without", True: "with"}
"""Speculation."""


@dataclass(frozen=True, slots=True)
class RouteCapacity:
    """One route alone on one machine."""

    work: Workload
    plain: tuple[LoadPoint, ...]
    best: tuple[LoadPoint, ...]
    """With the best draft length, at the same concurrencies."""
    crossing: Crossing
    """Where the best draft length becomes 0, prompts sharing the steps."""
    crossing_decoding: Crossing
    """The same of decoding alone."""
    crossing_requests_per_s: float | None
    """Requests a second that are served there."""
    most: Mapping[bool, LoadPoint | None]
    """Load of the most requests a second, without and with speculation; None where the time between tokens
    that was asked for cannot be had."""


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """All routes, and how many accelerators they need."""

    routes: tuple[RouteCapacity, ...]
    most_sequences: Mapping[bool, int]
    num_accelerators: int
    """Of one machine."""
    machines: Mapping[bool, int | None]
    simulated: Mapping[bool, Served] | None
    assumptions: tuple[str, ...]

    @property
    def simulated_on(self) -> int:
        """Return the machines that share the simulated arrivals."""
        return max((number for number in self.machines.values() if number), default=0)

    def speedup_of(self, place: int) -> float | None:
        """Return a route's simulated time between tokens without speculation over that with it."""
        if self.simulated is None:
            return None
        off, on = (self.simulated[s].routes[place].token_s for s in (False, True))
        return None if off is None or on is None else off / on

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; seconds and requests per second."""
        return {
            "routes": [self._route_json(i, route) for i, route in enumerate(self.routes)],
            "max_sequences": _by_word(self.most_sequences),
            "accelerators_needed": _by_word(
                {s: None if n is None else n * self.num_accelerators for s, n in self.machines.items()}
            ),
            "simulated": None
            if self.simulated is None
            else {
                "machines": self.simulated_on,
                **{WORDS[s]: asdict(served) for s, served in self.simulated.items()},
            },
            "assumptions": list(self.assumptions),
        }

    def _route_json(self, place: int, route: RouteCapacity) -> dict[str, Any]:
        work = route.work
        return {
            "name": work.name,
            "acceptance": work.acceptance,
            "prompt_tokens": work.prompt_tokens,
            "output_tokens": work.output_tokens,
            "arrivals_per_s": work.arrivals_per_s,
            "by_concurrency": [
                {
                    "concurrency": best.concurrency,
                    "best_k": best.draft_length,
                    "speedup": best.tokens_per_s / plain.tokens_per_s,
                    "tokens_per_s": {"without": plain.tokens_per_s, "with": best.tokens_per_s},
                }
                for plain, best in zip(route.plain, route.best, strict=True)
            ],
            "crossing_concurrency": route.crossing.concurrency,
            "crossing_concurrency_decoding": route.crossing_decoding.concurrency,
            "crossing_arrivals_per_s": route.crossing_requests_per_s,
            "most_requests_per_s": _by_word(
                {s: None if point is None else point.requests_per_s for s, point in route.most.items()}
            ),
            "simulated_speedup": self.speedup_of(place),
        }


def _by_word(values: Mapping[bool, Any]) -> dict[str, Any]:
    return {WORDS[s]: value for s, value in values.items()}


def show(report: CapacityReport) -> None:
    """Print it for people."""
    click.echo("Estimates, from:")
    for line in report.assumptions:
        click.echo(f"- {line}")
    for route in report.routes:
        click.echo()
        _show_route(route, report)
    click.echo()
    _show_machines(report)
    if report.simulated is not None:
        click.echo()
        _show_simulated(report)


def _show_route(route: RouteCapacity, report: CapacityReport) -> None:
    work = route.work
    click.echo(
        f"{work.name}: {work.prompt_tokens} tokens in, {work.output_tokens} out, acceptance {_chances(work)}"
    )
    print_table(
        ("CONCURRENCY", "BEST K", "SPEEDUP", "TOKENS/S OFF", "ON", "MS/TOKEN OFF", "ON"),
        [
            (
                str(best.concurrency), str(best.draft_length),
                f"{best.tokens_per_s / plain.tokens_per_s:.2f}x",
                f"{plain.tokens_per_s:,.0f}", f"{best.tokens_per_s:,.0f}", f"{1e3 * plain.token_s:.1f}",
                f"{1e3 * best.token_s:.1f}",
            )
            for plain, best in zip(route.plain, route.best, strict=True)
        ],
    )  # fmt: skip
    print_fields(
        [
            ("best k becomes 0", _crossing(route, report)),
            (
                "decoding alone",
                _concurrency(route.crossing_decoding) + " (were no prompts to share the steps)",
            ),
        ]
    )


def _crossing(route: RouteCapacity, report: CapacityReport) -> str:
    text = _concurrency(route.crossing)
    if route.crossing.concurrency is None:
        return text
    text += f"; {route.crossing_requests_per_s:.2f} requests a second are served there"
    if route.crossing.concurrency > report.most_sequences[True]:
        text += f". Memory or --max-sequences stops at {report.most_sequences[True]:,}, so never here"
    return text


def _concurrency(found: Crossing) -> str:
    if found.concurrency is None:
        return f"not up to {MOST_CONCURRENCY:,} sequences"
    again = (
        "" if found.resumes is None else f", and pays again from {found.resumes:,}, where KV bounds a step"
    )
    return f"at {found.concurrency:,} sequences{again}"


def _chances(work: Workload) -> str:
    if isinstance(work.acceptance, int | float):
        return f"{work.acceptance:g} (independent)"
    return "/".join(f"{chance:g}" for chance in work.acceptance) + " (by position)"


def _show_machines(report: CapacityReport) -> None:
    rows = []
    for speculates, word in WORDS.items():
        number = report.machines[speculates]
        most = [route.most[speculates] for route in report.routes]
        rows.append(
            (
                f"{word} speculation",
                f"{report.most_sequences[speculates]:,}",
                ", ".join("-" if one is None else f"{one.requests_per_s:.2f}" for one in most),
                "-" if number is None else f"{number * report.num_accelerators:,}",
            )
        )
    print_table(("", "MOST SEQUENCES", "MOST REQUESTS/S, A MACHINE", "ACCELERATORS NEEDED"), rows)


def _show_simulated(report: CapacityReport) -> None:
    assert report.simulated is not None
    click.echo(
        f"Simulated, the policy deciding step by step: the same arrivals on {report.simulated_on} "
        f"machine{'s' if report.simulated_on > 1 else ''}"
    )
    plain, auto = report.simulated[False], report.simulated[True]
    print_table(
        ("ROUTE", "MS/TOKEN OFF", "ON", "SPEEDUP", "TTFT MS OFF", "ON", "MEAN K"),
        [
            (
                off.name, _ms(off.token_s, 1), _ms(on.token_s, 1), _ratio(report.speedup_of(place)),
                _ms(off.ttft_s, 0), _ms(on.ttft_s, 0), f"{on.draft_length:.2f}",
            )
            for place, (off, on) in enumerate(zip(plain.routes, auto.routes, strict=True))
        ],
    )  # fmt: skip
    click.echo(f"decoding at once, on average: {plain.concurrency:.1f} off, {auto.concurrency:.1f} on")
    for word, served in (("without", plain), ("with", auto)):
        if served.num_waiting > 1:
            click.echo(f"{word} speculation {served.num_waiting} requests still waited: it does not keep up")


def _ms(seconds: float | None, digits: int) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.{digits}f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def show_published(found: Sequence[Comparison], *, as_json: bool) -> None:
    """Print published crossings beside those of rooflines."""
    if as_json:
        print_json([asdict(one) for one in found])
        return
    print_table(
        ("PUBLISHED", "HARDWARE", "K", "ACCEPTANCE, FITTED", "STOPS GAINING", "BY ROOFLINE"),
        [
            (
                one.published.name, one.published.accelerator, str(one.published.draft_length),
                f"{one.acceptance:.2f}", _published(one), _concurrency(one.crossing),
            )
            for one in found
        ],
    )  # fmt: skip
    for one in found:
        click.echo(f"{one.published.name}: {one.published.source}")


def _published(one: Comparison) -> str:
    if one.published.loses_from is None:
        return f"beyond {one.published.gains_to}"
    return f"{one.published.gains_to} to {one.published.loses_from}"
