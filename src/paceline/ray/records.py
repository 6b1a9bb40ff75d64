"""What passes between the hub, which keeps the routes, and the replicas, which follow them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.administration.overlay import OverlayEntry
from paceline.config.routes import RouteSettings


@dataclass(frozen=True, slots=True)
class SharedRoutes:
    """The routes of all replicas at one moment."""

    version: int
    """Another one after each change, and after each start of the hub."""
    default: str | None
    base: Mapping[str, RouteSettings]
    """What the configuration says."""
    overlay: Mapping[str, Mapping[str, OverlayEntry]]
    """What was changed at run time, by route and key."""
    in_force: Mapping[str, RouteSettings]
    """Both together: what requests may name."""
    changed_by: Mapping[str, str]
    """Who changed a route last; the configuration did where a route is not in it."""
    config_error: str | None = None
    """Why the configuration as it is now is not in force; none where it is."""


class Topic(enum.Enum):
    """What a replica may be asked for."""

    METRICS = "metrics"
    """All that it counts, as families of series."""
    ROUTES = "routes"
    """Its routes, as administration sees them."""
    STATUS = "status"
    """What its page would show."""
    DECISIONS = "decisions"
    """Its latest decisions on a route."""
    END = "end"
    """To take no more requests, and to say how its last ones ended."""


@dataclass(frozen=True, slots=True)
class Question:
    """Asked of every replica that is ready."""

    id: int
    topic: Topic
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Letter:
    """What the hub has for a replica that asks."""

    routes: SharedRoutes | None
    """None where the replica has seen them."""
    questions: tuple[Question, ...] = ()
