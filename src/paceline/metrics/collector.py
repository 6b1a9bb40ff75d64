"""Counts and a snapshot as Prometheus's families of series; names follow its conventions
(https://prometheus.io/docs/practices/naming/)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from paceline import __version__
from paceline.metrics.counts import Counts, RouteCounts
from paceline.metrics.histogram import Histogram
from paceline.metrics.snapshot import Snapshot
from paceline.policy.counterfactual import SpeedupFigure
from paceline.policy.reports import RouteReport
from paceline.policy.states import RouteState

Series = Iterable[tuple[tuple[str, ...], float | None]]


class PacelineCollector(Collector):
    """Publishes what was counted, whenever it is asked.

    Args:
        counts: the engine's.
        models: (name, digest of its files) by role, target and draft.
    """

    def __init__(self, counts: Counts, models: Mapping[str, tuple[str, str]]) -> None:
        self._counts = counts
        self._models = models
        self.snapshot: Snapshot | None = None
        """The engine when it was last looked at; whoever publishes takes a new one before."""

    def describe(self) -> Iterable[Metric]:
        """Describe nothing in advance, so that registering does not publish."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from self._info()
        yield from self._traffic()
        yield from self._drafts()
        yield from self._times()
        yield from self._decisions()
        if self.snapshot is not None:
            yield from _engine(self.snapshot)
            yield from _routes(self.snapshot.reports, self._counts.routes)

    def _info(self) -> Iterator[Metric]:
        yield InfoMetricFamily("paceline_build", "The running version.", {"version": __version__})
        info = InfoMetricFamily("paceline_model", "The models that are loaded.", labels=["role"])
        for role, (name, digest) in self._models.items():
            info.add_metric([role], {"name": name, "digest": digest})
        yield info

    def _traffic(self) -> Iterator[Metric]:
        routes = self._counts.routes
        yield _counter(
            "paceline_answers", "Answers that ended, by why.", ("route", "finish_reason"),
            (((r, why), n) for r, c in routes.items() for why, n in sorted(c.num_answers.items())),
        )  # fmt: skip
        for name, text, value in _ROUTE_COUNTERS:
            yield _counter(name, text, ("route",), (((r,), value(c)) for r, c in routes.items()))

    def _drafts(self) -> Iterator[Metric]:
        found = [
            ((route, drafter), drafts)
            for route, counts in self._counts.routes.items()
            for drafter, drafts in sorted(counts.drafts.items())
        ]
        labels = ("route", "drafter")
        yield _counter("paceline_drafted_tokens", "Draft tokens that the target verified.", labels,
                       ((key, d.num_drafted) for key, d in found))  # fmt: skip
        yield _counter("paceline_accepted_tokens", "Draft tokens that became part of an answer.", labels,
                       ((key, d.num_accepted) for key, d in found))  # fmt: skip
        yield _counter("paceline_wasted_draft_tokens", "Draft tokens that did not.", labels,
                       ((key, d.num_drafted - d.num_accepted) for key, d in found))  # fmt: skip
        for word, which in (("drafted", "drafted_at"), ("accepted", "accepted_at")):
            yield _counter(
                f"paceline_{word}_tokens_by_position", f"Draft tokens {word}, by place in their step.",
                (*labels, "position"),
                (
                    ((*key, str(place)), count)
                    for key, drafts in found
                    for place, count in enumerate(getattr(drafts, which), 1)
                    if drafts.drafted_at[place - 1]
                ),
            )  # fmt: skip

    def _times(self) -> Iterator[Metric]:
        routes = self._counts.routes
        for name, text, pick in _HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=["route"])
            for route, counts in routes.items():
                histogram = pick(counts)
                family.add_metric([route], histogram.buckets(), histogram.sum)
            yield family
        yield _counter("paceline_steps", "Steps of the engine.", (), [((), self._counts.num_steps)])
        stages = {"draft": self._counts.draft_s, "verify": self._counts.verify_s}
        stages["other"] = self._counts.step_s - sum(stages.values())
        yield _counter("paceline_step_seconds", "Time in steps, by stage.", ("stage",),
                       (((stage,), seconds) for stage, seconds in stages.items()))  # fmt: skip
        yield _counter("paceline_stalls", "Requests that were not served for too long.", (),
                       [((), self._counts.num_stalls)])  # fmt: skip

    def _decisions(self) -> Iterator[Metric]:
        yield _counter(
            "paceline_decisions", "Decisions on routes, by kind and the state they led to.",
            ("route", "kind", "state"), ((key, n) for key, n in sorted(self._counts.decisions.items())),
        )  # fmt: skip


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


def _engine(now: Snapshot) -> Iterator[Metric]:
    kv = now.kv
    for name, text, value in (
        ("paceline_sequences_running", "Sequences that hold KV blocks.", now.num_running),
        ("paceline_sequences_waiting", "Sequences that wait for their turn.", now.num_waiting),
        ("paceline_kv_blocks", "KV blocks there are.", kv.num_blocks),
        ("paceline_kv_blocks_used", "KV blocks that sequences hold.", kv.num_used),
        ("paceline_kv_blocks_draft", "Of these, held by drafts.", kv.num_held_by_drafts),
        ("paceline_kv_blocks_cached", "KV blocks that nobody holds, kept for reuse.", kv.num_cached),
    ):
        yield _gauge(name, text, (), [((), float(value))])
    yield _counter("paceline_preemptions", "Sequences that gave their blocks to older ones.", (),
                   [((), now.num_preemptions)])  # fmt: skip
    yield _counter(
        "paceline_prefix_cache_queries_tokens", "Tokens looked up in the KV cache.", ("model",),
        [(("target",), kv.num_prefix_queries), (("draft",), kv.num_draft_prefix_queries)],
    )  # fmt: skip
    yield _counter(
        "paceline_prefix_cache_hits_tokens", "Of these, found.", ("model",),
        [(("target",), kv.num_prefix_hits), (("draft",), kv.num_draft_prefix_hits)],
    )  # fmt: skip


def _routes(reports: Mapping[str, RouteReport], counts: Mapping[str, RouteCounts]) -> Iterator[Metric]:
    each = list(reports.items())
    yield _gauge(
        "paceline_route_state", "1 for the state that a route is in.", ("route", "state"),
        (((name, state.value), float(one.state is state)) for name, one in each for state in RouteState),
    )  # fmt: skip
    yield _gauge(
        "paceline_acceptance_rate", "Accepted / drafted, lately.", ("route", "drafter"),
        (((name, figure.source), figure.rate) for name, one in each for figure in one.acceptance),
    )  # fmt: skip
    yield _gauge("paceline_acceptance_length", "Tokens for each verify step, lately.", ("route",),
                 (((name,), one.acceptance_length) for name, one in counts.items()))  # fmt: skip
    yield _gauge(
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
        yield _gauge(f"paceline_route_speedup_{suffix}_ratio", text, ("route",), values)


_SPEEDUPS: tuple[tuple[str, str, Callable[[SpeedupFigure], float | None]], ...] = (
    ("estimate", "Estimated tokens per second / those without drafts.", lambda one: one.estimate),
    ("low", "Lower end of its 95 % interval by control windows.", lambda one: one.low),
    ("high", "Upper end of it.", lambda one: one.high),
)


def _counter(name: str, text: str, labels: tuple[str, ...], series: Series) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), series)


def _gauge(name: str, text: str, labels: tuple[str, ...], series: Series) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), series)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, series: Series) -> Metric:
    """Add those that are known: what is not measured yet has no series, rather than a 0."""
    for labels, value in series:
        if value is not None:
            family.add_metric(labels, value)
    return family
