"""What is counted of routes as Prometheus's families of series, whichever engine counts it; names follow its
conventions (https://prometheus.io/docs/practices/naming/)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from paceline import __version__
from paceline.metrics.counts import Counts, RouteCounts
from paceline.metrics.histogram import Histogram
from paceline.policy.counterfactual import SpeedupFigure
from paceline.policy.reports import RouteReport
from paceline.policy.states import RouteState

Series = Iterable[tuple[tuple[str, ...], float | None]]


def build_families() -> Iterator[Metric]:
    """Yield the version."""
    yield InfoMetricFamily("paceline_build", "The running version.", {"version": __version__})


def traffic_families(counts: Counts) -> Iterator[Metric]:
    """Yield answers and their tokens, by route."""
    routes = counts.routes
    yield counter(
        "paceline_answers", "Answers that ended, by why.", ("route", "finish_reason"),
        (((r, why), n) for r, c in routes.items() for why, n in sorted(c.num_answers.items())),
    )  # fmt: skip
    for name, text, value in _ROUTE_COUNTERS:
        yield counter(name, text, ("route",), (((r,), value(c)) for r, c in routes.items()))


def draft_families(counts: Counts) -> Iterator[Metric]:
    """Yield drafts and what became of them, by route and drafter."""
    found = [
        ((route, drafter), drafts)
        for route, one in counts.routes.items()
        for drafter, drafts in sorted(one.drafts.items())
    ]
    labels = ("route", "drafter")
    yield counter("paceline_drafted_tokens", "Draft tokens that the target verified.", labels,
                  ((key, d.num_drafted) for key, d in found))  # fmt: skip
    yield counter("paceline_accepted_tokens", "Draft tokens that became part of an answer.", labels,
                  ((key, d.num_accepted) for key, d in found))  # fmt: skip
    yield counter("paceline_wasted_draft_tokens", "Draft tokens that did not.", labels,
                  ((key, d.num_drafted - d.num_accepted) for key, d in found))  # fmt: skip
    for word, which in (("drafted", "drafted_at"), ("accepted", "accepted_at")):
        yield counter(
            f"paceline_{word}_tokens_by_position", f"Draft tokens {word}, by place in their step.",
            (*labels, "position"),
            (
                ((*key, str(place)), count)
                for key, drafts in found
                for place, count in enumerate(getattr(drafts, which), 1)
                if drafts.drafted_at[place - 1]
            ),
        )  # fmt: skip


def time_families(counts: Counts) -> Iterator[Metric]:
    """Yield histograms of answers, by route, and the time in steps, by stage."""
    for name, text, pick in _HISTOGRAMS:
        family = HistogramMetricFamily(name, text, labels=["route"])
        for route, one in counts.routes.items():
            histogram = pick(one)
            family.add_metric([route], histogram.buckets(), histogram.sum)
        yield family
    yield counter("paceline_steps", "Steps of the engine.", (), [((), counts.num_steps)])
    stages = {"draft": counts.draft_s, "verify": counts.verify_s}
    stages["other"] = counts.step_s - sum(stages.values())
    yield counter("paceline_step_seconds", "Time in steps, by stage.", ("stage",),
                  (((stage,), seconds) for stage, seconds in stages.items()))  # fmt: skip
    yield counter("paceline_stalls", "Requests that were not served for too long.", (),
                  [((), counts.num_stalls)])  # fmt: skip


def decision_families(counts: Counts) -> Iterator[Metric]:
    """Yield decisions, by route, kind and outcome."""
    yield counter(
        "paceline_decisions", "Decisions on routes, by kind and the state they led to.",
        ("route", "kind", "state"), ((key, n) for key, n in sorted(counts.decisions.items())),
    )  # fmt: skip


def report_families(
    reports: Mapping[str, RouteReport], counts: Mapping[str, RouteCounts]
) -> Iterator[Metric]:
    """Yield the state of each route, and what the policy knows of it."""
    each = list(reports.items())
    yield gauge(
        "paceline_route_state", "1 for the state that a route is in.", ("route", "state"),
        (((name, state.value), float(one.state is state)) for name, one in each for state in RouteState),
    )  # fmt: skip
    yield gauge(
        "paceline_acceptance_rate", "Accepted / drafted, lately.", ("route", "drafter"),
        (((name, figure.source), figure.rate) for name, one in each for figure in one.acceptance),
    )  # fmt: skip
    yield gauge("paceline_acceptance_length", "Tokens for each verify step, lately.", ("route",),
                (((name,), one.acceptance_length) for name, one in counts.items()))  # fmt: skip
    yield gauge(
        "paceline_route_tokens_per_second", "Tokens per second of decoding steps: as served, and the "
        "estimate without drafts.", ("route", "mode"),
        (
            ((name, mode), value)
            for name, one in each
            for mode, value in (
                ("served", one.speedup.served_tokens_per_second),
                ("plain_estimate", one.speedup.plain_tokens_per_second),
            )
        ),
    )  # fmt: skip
    for suffix, text, pick in _SPEEDUPS:
        values = (((name,), pick(one.speedup)) for name, one in each)
        yield gauge(f"paceline_route_speedup_{suffix}_ratio", text, ("route",), values)


_ROUTE_COUNTERS: tuple[tuple[str, str, Callable[[RouteCounts], float]], ...] = (
    ("paceline_prompt_tokens", "Tokens of prompts that were answered.", lambda c: c.num_prompt_tokens),
    ("paceline_cached_prompt_tokens", "Of these, found in the KV cache.", lambda c: c.num_cached_tokens),
    ("paceline_output_tokens", "Tokens of answers.", lambda c: c.num_output_tokens),
    ("paceline_verify_steps", "Steps in which sequences decoded, each for itself.",
     lambda c: c.num_verify_steps),
    ("paceline_fallbacks", "Answers that lacked drafts which they should have had.",
     lambda c: c.num_fallbacks),
)  # fmt: skip

_HISTOGRAMS: tuple[tuple[str, str, Callable[[RouteCounts], Histogram]], ...] = (
    ("paceline_time_to_first_token_seconds", "From a request to its first token.", lambda c: c.ttft),
    ("paceline_inter_token_latency_seconds", "Between tokens of an answer.", lambda c: c.itl),
    ("paceline_request_duration_seconds", "From a request to its last token.", lambda c: c.duration),
    ("paceline_draft_length", "Drafts of a sequence in a step, none included.", lambda c: c.draft_lengths),
)

_SPEEDUPS: tuple[tuple[str, str, Callable[[SpeedupFigure], float | None]], ...] = (
    ("estimate", "Estimated tokens per second / those without drafts.", lambda one: one.estimate),
    ("low", "Lower end of its 95 % interval by control windows.", lambda one: one.low),
    ("high", "Upper end of it.", lambda one: one.high),
)


def counter(name: str, text: str, labels: tuple[str, ...], series: Series) -> Metric:
    """Return a family of counters; see `gauge`."""
    return _filled(CounterMetricFamily(name, text, labels=labels), series)


def gauge(name: str, text: str, labels: tuple[str, ...], series: Series) -> Metric:
    """Return a family of gauges: what is not measured yet (None) has no series, rather than a 0."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), series)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, series: Series) -> Metric:
    for labels, value in series:
        if value is not None:
            family.add_metric(labels, value)
    return family
