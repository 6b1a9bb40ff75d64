"""Routes: what a kind of traffic is allowed, as its owner wrote it down, and what a request may change of
it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline.config.drafter_names import resolved, with_mixed
from paceline.config.routes import RouteSettings, Speculation
from paceline.errors import ConfigError, InvalidParameterError
from paceline.records import SpeculationParams

__all__ = ["RouteOverride", "RouteSettings", "RouteTable", "Speculation"]
MAX_LABELS = 64
"""Routes that a table without configured ones tells apart; labels beyond share one, so that figures stay
few."""
OTHER = "other"
_VERSIONS = itertools.count()


class RouteTable:
    """The routes of one server. Changing one is atomic: the next step sees the new settings whole.

    Args:
        routes: settings by name.
        default: the route of requests that name none, or one that is not there; without it both are errors.
        any_label: settings of routes that nobody configured, each tracked by its own label. For tools whose
            input has labels of its own; a server should not have it.

    Raises:
        ConfigError: the default is not one of the routes, or there is nothing at all.
    """

    def __init__(
        self,
        routes: Mapping[str, RouteSettings],
        default: str | None = None,
        any_label: RouteSettings | None = None,
    ) -> None:
        if default is not None and default not in routes:
            raise ConfigError(
                given=f"default_route = {default!r}",
                expected="one of the routes: " + (", ".join(routes) or "there is none"),
                remedy="Add that route, or name another default",
            )
        if not routes and any_label is None:
            raise ConfigError(given="no routes", expected="at least one", remedy="Add a route")
        self._routes = dict(routes)
        self._any_label = any_label
        self.default = default
        self.version = next(_VERSIONS)
        """Another number whenever settings are replaced, and for each table."""

    @property
    def names(self) -> tuple[str, ...]:
        """All routes, those that were met without being configured included."""
        return tuple(self._routes)

    def __contains__(self, name: object) -> bool:
        return name in self._routes

    def may_have(self, name: str) -> bool:
        """Whether there is such a route, or would be once a request named it."""
        return name in self._routes or self._any_label is not None

    def __getitem__(self, name: str) -> RouteSettings:
        """Return the settings of a route that is there."""
        return self._routes[name]

    def resolve(self, name: str | None) -> str:
        """Return the route that a request belongs to.

        Raises:
            InvalidParameterError: there is no such route, and no default.
        """
        if name is not None and name in self._routes:
            return name
        if self._any_label is not None:
            return self._label(name)
        if self.default is not None:
            return self.default
        raise InvalidParameterError(
            given="no route" if name is None else f"route {name!r}",
            expected="one of " + ", ".join(map(repr, self._routes)),
            remedy="Name one of them, or set default_route",
        )

    def _label(self, name: str | None) -> str:
        label = name or "default"
        if label not in self._routes:
            if len(self._routes) >= MAX_LABELS:
                label = OTHER
            assert self._any_label is not None
            self._routes[label] = self._any_label
        return label

    def replace(self, name: str, settings: RouteSettings) -> None:
        """Put new settings in force from the next step on.

        Raises:
            ConfigError: there is no such route.
        """
        if name not in self._routes:
            raise ConfigError(
                given=f"route {name!r}",
                expected="one of " + ", ".join(map(repr, self._routes)),
                remedy="Name one of them, or add it to the configuration",
            )
        self._routes[name] = settings
        self.version = next(_VERSIONS)


class RouteOverride(BaseModel):
    """What one request asks of its route: `"speculation": {"enabled": ..., "max_draft_length": ...}`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool | Literal["auto"] | None = None
    max_draft_length: int | None = Field(None, ge=1, le=64)
    drafter: str | None = None

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidParameterError(
                given=f"speculation.{'.'.join(map(str, first['loc'])) or 'value'} = {first['input']!r:.100}",
                expected="enabled: true, false or 'auto'; max_draft_length: 1 to 64; drafter: a name",
                remedy="Change the value, or leave it out",
            ) from None

    def within(self, name: str, route: RouteSettings) -> SpeculationParams:
        """Return the parameters of a request on this route.

        Raises:
            InvalidParameterError: it asks for more than the route allows.
        """
        if self.enabled in (True, "auto") and route.speculation is Speculation.OFF:
            raise self._refuse(
                name, f"enabled = {self.enabled!r}", "false: speculation is off for this route"
            )
        if self.max_draft_length is not None and self.max_draft_length > route.most_drafts:
            raise self._refuse(
                name, f"max_draft_length = {self.max_draft_length}", f"at most {route.most_drafts}"
            )
        allowed = with_mixed(route.drafters)
        drafter = None if self.drafter is None else resolved(self.drafter, allowed)
        if drafter is not None and drafter not in allowed:
            raise self._refuse(name, f"drafter = {self.drafter!r}", "one of " + ", ".join(route.drafters))
        return SpeculationParams(
            enabled="route" if self.enabled is None else self.enabled,
            drafter=drafter,
            draft_length=min(route.fixed_length, self.max_draft_length or route.fixed_length),
            max_draft_length=self.max_draft_length,
            verification=route.verification,
        )

    def _refuse(self, name: str, given: str, expected: str) -> InvalidParameterError:
        return InvalidParameterError(
            given=f"speculation.{given} for route {name!r}",
            expected=expected,
            remedy="Ask for less, leave it out, or have the route changed",
        )
