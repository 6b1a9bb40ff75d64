"""How many threads each replica computes with, so that all of them have a place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Share:
    """What one replica has of a cluster."""

    threads: int
    num_cpus: float
    """What Ray sets aside for it; less than 1 where replicas outnumber CPUs."""


def share_of(node_cpus: Sequence[float], num_replicas: int, threads: int | None) -> Share:
    """Return the share of each replica: equal ones, and as large as lets all replicas have their place.

    Args:
        node_cpus: CPUs of each node.
        num_replicas: how many replicas there are to be.
        threads: what the configuration says; none leaves it to this.

    Raises:
        ConfigError: so many threads for so many replicas are more than the nodes have.
    """
    if threads is not None:
        if _places(node_cpus, threads) < num_replicas:
            raise ConfigError(
                given=f"{num_replicas} replicas of {threads} threads each, on nodes of "
                + ", ".join(f"{cpus:g}" for cpus in node_cpus)
                + " CPUs",
                expected="nodes that have a CPU for each thread",
                remedy="Lower threads or --replicas, or add nodes",
            )
        return Share(threads, threads)
    for count in range(math.floor(max(node_cpus, default=0)), 0, -1):
        if _places(node_cpus, count) >= num_replicas:
            return Share(count, count)
    # Fewer CPUs than replicas: they share, which only makes sense where somebody wants to try it.
    per_cpu = math.ceil(num_replicas / max(1, sum(math.floor(cpus) for cpus in node_cpus)))
    return Share(1, 1 / per_cpu)


def _places(node_cpus: Sequence[float], threads: int) -> int:
    return sum(math.floor(cpus / threads) for cpus in node_cpus)
