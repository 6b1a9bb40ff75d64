"""Counts and a snapshot of an embedded engine, published for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.metrics.counts import Counts
from paceline.metrics.families import (
    build_families,
    counter,
    decision_families,
    draft_families,
    gauge,
    report_families,
    time_families,
    traffic_families,
)
from paceline.metrics.snapshot import Snapshot


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
        yield from build_families()
        yield self._model_info()
        yield from traffic_families(self._counts)
        yield from draft_families(self._counts)
        yield from time_families(self._counts)
        yield from decision_families(self._counts)
        if self.snapshot is not None:
            yield from _engine(self.snapshot)
            yield from report_families(self.snapshot.reports, self._counts.routes)

    def _model_info(self) -> Metric:
        info = InfoMetricFamily("paceline_model", "The models that are loaded.", labels=["role"])
        for role, (name, digest) in self._models.items():
            info.add_metric([role], {"name": name, "digest": digest})
        return info


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
        yield gauge(name, text, (), [((), float(value))])
    yield counter("paceline_preemptions", "Sequences that gave their blocks to older ones.", (),
                  [((), now.num_preemptions)])  # fmt: skip
    yield counter(
        "paceline_prefix_cache_queries_tokens", "Tokens looked up in the KV cache.", ("model",),
        [(("target",), kv.num_prefix_queries), (("draft",), kv.num_draft_prefix_queries)],
    )  # fmt: skip
    yield counter(
        "paceline_prefix_cache_hits_tokens", "Of these, found.", ("model",),
        [(("target",), kv.num_prefix_hits), (("draft",), kv.num_draft_prefix_hits)],
    )  # fmt: skip
