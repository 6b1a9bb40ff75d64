"""What the engine cores counted, published for Prometheus under the names of Paceline's own server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

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
from paceline.vllm.bridge import Bridge
from paceline.vllm.engine_file import EngineFile
from paceline.vllm.engines import read_engines

ENGINE_LABEL = "engine"


class BridgeCollector(Collector):
    """Reads the engine cores' files whenever it is asked.

    Args:
        bridge: the folder.

    Where there are several engine cores, each series has the rank of its own as the label `engine`.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def describe(self) -> Iterable[Metric]:
        """Describe nothing in advance, so that registering does not publish."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from build_families()
        engines = read_engines(self._bridge)
        if len(engines) == 1:
            yield from _families(engines[0])
            return
        merged: dict[str, Metric] = {}
        for engine in engines:
            for family in _families(engine):
                into = merged.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type, family.unit)
                )
                for sample in family.samples:
                    labels = {**sample.labels, ENGINE_LABEL: str(engine.rank)}
                    into.samples.append(sample._replace(labels=labels))
        yield from merged.values()


def _families(engine: EngineFile) -> Iterator[Metric]:
    counts = engine.counts
    yield from traffic_families(counts)
    yield from draft_families(counts)
    yield from time_families(counts)
    yield from decision_families(counts)
    yield from report_families(engine.reports, counts.routes)
    for name, text, value in (
        ("paceline_sequences_running", "Sequences that hold KV blocks.", engine.num_running),
        ("paceline_sequences_waiting", "Sequences that wait for their turn.", engine.num_waiting),
        ("paceline_kv_blocks", "KV blocks there are.", engine.num_kv_blocks),
        ("paceline_kv_blocks_used", "KV blocks that sequences hold.", engine.num_kv_blocks_used),
    ):
        yield gauge(name, text, (), [((), float(value))])
    yield counter("paceline_preemptions", "Sequences that gave their blocks to older ones.", (),
                  [((), engine.num_preemptions)])  # fmt: skip
