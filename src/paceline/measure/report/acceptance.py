"""Acceptance of a route's drafters, from their readings of its answers, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.measure.intervals import Interval, ratio
from paceline.measure.replay import Reading, Tally, Trace, tally
from paceline.measure.setting import MIXED, MODEL, SUFFIX

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LOW_AGREEMENT = 0.5
"""Below so much a draft model is said not to match a route's domain."""
FAR_BELOW = 0.15
"""Or where it is so far below its median over the routes, of which there are some."""
LEAST_ROUTES = 3


def traces_of(
    readings: Sequence[Reading], request_ids: Sequence[str], drafts: Sequence[str | None]
) -> dict[str, list[Trace]]:
    """Return each drafter's traces of some answers, in their order; both together for each draft model.

    Args:
        readings: of all drafters.
        request_ids: of the answers; all were read by all.
        drafts: names of the draft models.
    """
    by_key = {(one.drafter, one.request_id): one for one in readings}
    looked_up = [by_key[SUFFIX, one] for one in request_ids]
    found: dict[str, list[Trace]] = {}
    for name in drafts:
        end = "" if name is None else f":{name}"
        model = [by_key[MODEL + end, one].trace for one in request_ids if (MODEL + end, one) in by_key]
        if len(model) < len(request_ids):
            continue
        found[MODEL + end] = model
        found[MIXED + end] = [
            one.trace.mixed_with(other, one.match_lengths)
            for one, other in zip(looked_up, model, strict=True)
        ]
    return {**found, SUFFIX: [one.trace for one in looked_up]}


def drafter_figures(
    traces: Mapping[str, Sequence[Trace]], limits: Sequence[int], most: int
) -> list[dict[str, Any]]:
    """Return the acceptance of each drafter on a route, at every place, position and draft length.

    Args:
        traces: by drafter, one for each answer.
        limits: most tokens of each answer.
        most: longest draft.
    """
    return [
        {
            "drafter": drafter,
            "agreement": _json(agreement(found)),
            "by_position": _by_position(
                [tally(t, limit, most) for t, limit in zip(found, limits, strict=True)]
            ),
            "by_length": [
                _at_length(length, [tally(t, limit, length) for t, limit in zip(found, limits, strict=True)])
                for length in LENGTHS
                if length <= most
            ],
        }
        for drafter, found in traces.items()
    ]


def agreement(traces: Sequence[Trace]) -> Interval | None:
    """Return the share of places behind the first at which a first draft would have stood; one that is not
    made does not."""
    return ratio(
        [float(np.count_nonzero(one.agreed[1:] > 0)) for one in traces],
        [float(len(one.agreed[1:])) for one in traces],
    )


def _by_position(tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    """Return accepted / drafted at each position of drafts as long as they may be."""
    found = []
    for place in range(len(tallies[0].drafted_by_position) if tallies else 0):
        drafted = [one.drafted_by_position[place] for one in tallies]
        accepted = [one.accepted_by_position[place] for one in tallies]
        found.append(
            {
                "position": place + 1,
                "num_drafted": sum(drafted),
                "num_accepted": sum(accepted),
                "acceptance": _json(ratio(accepted, drafted)),
            }
        )
    return found


def _at_length(length: int, tallies: Sequence[Tally]) -> dict[str, Any]:
    emitted = sum(one.num_emitted for one in tallies)
    drafted = sum(one.num_drafted for one in tallies)
    return {
        "draft_length": length,
        "num_drafted": drafted,
        "num_accepted": sum(one.num_accepted for one in tallies),
        "acceptance_rate": _json(
            ratio([one.num_accepted for one in tallies], [one.num_drafted for one in tallies])
        ),
        "acceptance_length": _json(
            ratio([one.num_emitted for one in tallies], [one.num_steps for one in tallies], is_share=False)
        ),
        "drafted_per_token": drafted / emitted if emitted else None,
        "wasted_per_token": sum(one.num_wasted for one in tallies) / emitted if emitted else None,
    }


def _json(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else found.to_json()


def mismatches(by_route: Mapping[str, float | None]) -> dict[str, str]:
    """Return the routes whose domain a draft model does not match, with the reason.

    Args:
        by_route: its agreement on each route; none where it was not read.
    """
    known = {name: value for name, value in by_route.items() if value is not None}
    if not known:
        return {}
    median = float(np.median(list(known.values())))
    found = {}
    for name, value in known.items():
        if value < LOW_AGREEMENT:
            found[name] = f"it guesses {value:.0%} of the tokens, fewer than half"
        elif len(known) >= LEAST_ROUTES and value < median - FAR_BELOW:
            found[name] = (
                f"it guesses {value:.0%} of the tokens, where its median over the routes is {median:.0%}"
            )
    return found
