"""Which requests of the traffic are measured: as many of each route, spread over the file."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from paceline.measure.traffic import TrafficRequest


def stratified(
    by_route: Mapping[str, Sequence[TrafficRequest]], per_route: int, seed: int
) -> list[list[TrafficRequest]]:
    """Return rounds of requests, one of each route in each, for as long as routes have some left.

    A measurement that has to stop after any round has as many of each route, so no route's figures rest on
    less because it came later in the file.

    Args:
        by_route: what there is.
        per_route: most requests of one route.
        seed: of the draw, which is without replacement.
    """
    chance = random.Random(seed)
    drawn = {}
    for name, found in by_route.items():
        order = list(found)
        chance.shuffle(order)
        drawn[name] = order[:per_route]
    most = max(map(len, drawn.values()), default=0)
    return [[order[place] for order in drawn.values() if place < len(order)] for place in range(most)]
