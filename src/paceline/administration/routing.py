"""Which route a request belongs to: its header, its model's suffix, its key, the default, in this order."""

from __future__ import annotations

from collections.abc import Collection, Iterable

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
    _, suffix = split_model(model, (served,), routes)
    return first_route((header, suffix, of_key, default), routes)


def split_model(model: str, served: Collection[str], routes: Collection[str]) -> tuple[str, str | None]:
    """Return the model that a request names and the route behind it, if there is one.

    Args:
        model: as the request has it.
        served: what models are called.
        routes: those that are there.

    Raises:
        UnknownModelError: it is none of them, or has a route that is not there.
    """
    if model in served:
        return model, None
    name, _, suffix = model.rpartition(":")
    if name in served and suffix in routes:
        return name, suffix
    one = next(iter(served))
    raise UnknownModelError(
        given=f"model {model!r:.120}",
        expected=", ".join(map(repr, served))
        + ", or with a route: "
        + ", ".join(f"{one}:{route}" for route in routes),
        remedy="Correct the model's name",
    )


def first_route(names: Iterable[str | None], routes: Collection[str]) -> str:
    """Return the first route that is named at all.

    Raises:
        UnknownRouteError: it is not there, or none is named.
    """
    given = next((name for name in names if name is not None), None)
    if given is not None and given in routes:
        return given
    raise UnknownRouteError(
        given="no route" if given is None else f"route {given!r:.120}",
        expected="one of " + ", ".join(map(repr, routes)),
        remedy=f"Name one in the header {ROUTE_HEADER} or as MODEL:ROUTE, or set default_route",
    )
