"""What each replica says of its routes, put together as one server's: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SUMMED = ("num_answers", "num_output_tokens")


def merged_routes(views: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return every route as the first replica has it, with the sums of all, and each one's report.

    Args:
        views: by replica, what `routes_view` returned there.
    """
    if not views:
        return []
    by_name = {number: {route["name"]: route for route in routes} for number, routes in views.items()}
    found = []
    for route in views[min(views)]:
        each = {
            number: routes[route["name"]] for number, routes in by_name.items() if route["name"] in routes
        }
        found.append(
            {
                **route,
                **{key: sum(one[key] for one in each.values()) for key in SUMMED},
                "replicas": {
                    str(number): {key: one[key] for key in ("report", "acceptance_length", *SUMMED)}
                    for number, one in sorted(each.items())
                },
            }
        )
    return found


def merged_decisions(
    decisions: Mapping[int, Sequence[Mapping[str, Any]]], limit: int
) -> list[dict[str, Any]]:
    """Return the latest decisions of all replicas, oldest first, each with its replica's number."""
    found = [{**one, "replica": str(number)} for number, some in decisions.items() for one in some]
    return sorted(found, key=lambda one: one["time"])[-limit:]


def merged_status(views: Mapping[int, Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """Return what the page shows: the first replica's, with the sums and the decisions of all.

    Args:
        views: by replica, what `status_view` returned there; at least one.
        limit: most decisions.
    """
    first = views[min(views)]
    engines = [view["engine"] for view in views.values()]
    return {
        **first,
        "routes": merged_routes({number: view["routes"] for number, view in views.items()}),
        "engine": _summed(engines),
        "decisions": merged_decisions({n: view["decisions"] for n, view in views.items()}, limit),
        "replicas": [str(number) for number in sorted(views)],
    }


def _summed(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return {key: _summed([one[key] for one in values]) for key in values[0]}
    return sum(values)
