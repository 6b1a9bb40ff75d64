"""Routes: what a kind of traffic is allowed, as its owner wrote it down, and what a request may change of
it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from paceline.errors import ConfigError, InvalidParameterError
from paceline.records import SpeculationParams, Verification

DEFAULT_MAX_DRAFT_LENGTH = 8
DEFAULT_DRAFT_LENGTH = 4
MAX_LABELS = 64
"""Routes that a table without configured ones tells apart; labels beyond share one, so that figures stay
few."""
OTHER = "other"


class Speculation(enum.StrEnum):
    """What a route's owner wants."""

    AUTO = "auto"
    """The policy speculates where it pays."""
    ON = "on"
    """Always, with the route's fixed draft length; nothing pauses it."""
    OFF = "off"
    """Never."""


class RouteSettings(BaseModel):
    """One route. Frozen: a change is a new object (`changed`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    speculation: Speculation = Speculation.AUTO
    drafters: tuple[str, ...] = ("suffix", "model")
    """Names of the drafters that may propose; `auto` picks among them, `on` takes all of them together."""
    max_draft_length: int | None = Field(None, ge=1, le=64)
    """Most drafts for one sequence in one step; 8 where nothing is said."""
    draft_length: int | None = Field(None, ge=1, le=64)
    """Fixed k where speculation is on; with `auto` it is the most."""
    verification: Verification = Verification.COUPLED
    weight: float = Field(1.0, gt=0.0, le=1000.0)
    """What a token of this route is worth beside one of weight 1."""
    min_output_length: int = Field(8, ge=1)
    """Answers shorter than this many tokens are not speculated for."""
    probe_budget: float = Field(0.01, ge=0.0, le=0.05)
    """Share of the time that may be lost to finding out whether a paused route should speculate again."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explain(error) from None

    @field_validator("speculation", mode="before")
    @classmethod
    def _words_that_yaml_reads_as_truth(cls, value: Any) -> Any:
        """Unquoted `on` and `off` are booleans in YAML 1.1."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @field_validator("drafters", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("drafters")
    @classmethod
    def _named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) < len(value) or not all(value):
            raise ValueError("at least one drafter, each once")
        return value

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.max_draft_length is not None and self.draft_length is not None:
            raise ConfigError(
                given=f"max_draft_length = {self.max_draft_length} beside draft_length = {self.draft_length}",
                expected="one of them",
                remedy="Keep draft_length for a fixed k, or max_draft_length for the most that auto may take",
            )
        return self

    @property
    def most_drafts(self) -> int:
        """Drafts that a sequence may have in one step."""
        return self.draft_length or self.max_draft_length or DEFAULT_MAX_DRAFT_LENGTH

    @property
    def fixed_length(self) -> int:
        """k where speculation is on."""
        return self.draft_length or min(DEFAULT_DRAFT_LENGTH, self.most_drafts)

    def changed(self, values: Mapping[str, Any]) -> RouteSettings:
        """Return the settings with some of them replaced.

        Raises:
            ConfigError: a key is unknown or a value does not fit.
        """
        return RouteSettings(**{**self.model_dump(exclude_unset=True), **values})


def _explain(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"]) or "route"
    if first["type"] == "extra_forbidden":
        return ConfigError(
            given=f"unknown key {name!r} of a route",
            expected="one of " + ", ".join(RouteSettings.model_fields),
            remedy="Check its spelling, or leave it out",
        )
    return ConfigError(
        given=f"{name} = {first['input']!r} of a route",
        expected=first["msg"].removeprefix("Value error, ").removeprefix("Input should be "),
        remedy="Change the value, or leave it out to take the default",
    )


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

    @property
    def names(self) -> tuple[str, ...]:
        """All routes, those that were met without being configured included."""
        return tuple(self._routes)

    def __contains__(self, name: object) -> bool:
        return name in self._routes

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
        if self.drafter is not None and self.drafter not in allowed_drafters(route.drafters):
            raise self._refuse(name, f"drafter = {self.drafter!r}", "one of " + ", ".join(route.drafters))
        return SpeculationParams(
            enabled="route" if self.enabled is None else self.enabled,
            drafter=self.drafter,
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


def allowed_drafters(names: Iterable[str]) -> tuple[str, ...]:
    """Return these drafters, and `mixed` where both of its parts are among them."""
    allowed = tuple(names)
    both = "suffix" in allowed and "model" in allowed
    return (*allowed, "mixed") if both and "mixed" not in allowed else allowed
