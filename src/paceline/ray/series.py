"""The series of several replicas as those of one server, each with the label `replica`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LABEL = "replica"


def merged(replicas: Mapping[int, Iterable[Metric]]) -> list[Metric]:
    """Return one family of each name, with the series of all replicas."""
    families: dict[str, Metric] = {}
    for number, metrics in sorted(replicas.items()):
        for metric in metrics:
            family = families.setdefault(
                metric.name, Metric(metric.name, metric.documentation, metric.type, metric.unit)
            )
            family.samples += [
                sample._replace(labels={**sample.labels, LABEL: str(number)}) for sample in metric.samples
            ]
    return list(families.values())


def counted(counts: Mapping[str, int]) -> list[Metric]:
    """Return how many replicas there are as families of their own."""
    replicas = GaugeMetricFamily("paceline_replicas", "Replicas, by whether they answer.", labels=["state"])
    for state in ("ready", "loading"):
        replicas.add_metric([state], counts[state])
    lost = CounterMetricFamily("paceline_replicas_lost", "Replicas that went without a word.")
    lost.add_metric([], counts["lost"])
    return [replicas, lost]


def exposition(families: Sequence[Metric]) -> bytes:
    """Return families in Prometheus's text form."""
    registry = CollectorRegistry()
    registry.register(_Given(families))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._families
