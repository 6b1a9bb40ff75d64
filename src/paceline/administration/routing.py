"""Which route a request belongs to: its header, its model's suffix, its key, the default, in this order."""

from __future__ import annotations

from collections.abc import Collection

from paceline.errors import UnknownModelError, UnknownRouteError

ROUTE_HEADER = "X-Paceline-Route"


def resolve_route(
    served: str,
    model: str,
    header: str | None,
    of_key: str | None,
    routes: Collection[str],
    default: str | None,
) -> str:
    """Return the name of a request's route.

    Args:
        served: the model that is served.
        model: the model that the request names, with or without `:route`.
        header: the route that its header names, if it has one.
        of_key: the route of its API key, if it has one.
        routes: those that are there.
        default: the route of requests that name none.

    Raises:
        UnknownModelError: the request names another model, or a route of it that is not there.
        UnknownRouteError: the header names no route, or nothing does and there is no default.
    """
    name, colon, suffix = model.partition(":")
    if name != served or (colon and suffix not in routes):
        raise UnknownModelError(
            given=f"model {model!r:.120}",
            expected=f"{served!r}, or with a route: " + ", ".join(f"{served}:{route}" for route in routes),
            remedy="Correct the model's name",
        )
    for given in (header, suffix or None, of_key, default):
        if given is None:
            continue
        if given not in routes:
            break
        return given
    raise UnknownRouteError(
        given="no route" if given is None else f"route {given!r:.120}",
        expected="one of " + ", ".join(map(repr, routes)),
        remedy=f"Name one in the header {ROUTE_HEADER} or as MODEL:ROUTE, or set default_route",
    )
