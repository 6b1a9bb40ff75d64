"""What one kind of traffic is allowed: the keys of a route in the configuration."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from paceline.config.drafter_names import SUFFIX, resolved, with_mixed
from paceline.errors import ConfigError
from paceline.records import Verification

DEFAULT_MAX_DRAFT_LENGTH = 8
DEFAULT_DRAFT_LENGTH = 4


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

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    speculation: Speculation = Speculation.AUTO
    """`auto` speculates where it pays, `on` always with the route's draft length, `off` never."""
    drafters: tuple[str, ...] = ("suffix", "model")
    """Names of the drafters that may propose; `auto` picks among them, `on` takes all of them together, of
    several draft models the first. Of several, `model` alone is the first of the configuration, and where
    nothing is said, all of them may."""
    max_draft_length: int | None = Field(None, ge=1, le=64)
    """Most drafts for one sequence in one step; 8 where nothing is said."""
    draft_length: int | None = Field(None, ge=1, le=64)
    """Fixed k where speculation is on; with `auto` it is the most."""
    verification: Verification = Verification.COUPLED
    """How drafts are judged: `coupled` keeps the bytes of a seed, `rejection` their distribution."""
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

    @classmethod
    def of(cls, name: str, values: Any) -> Self:
        """Return the settings of a route as the configuration has them.

        Raises:
            ConfigError: they are no mapping, or a key or a value of them is wrong; it names the route.
        """
        if values is not None and not isinstance(values, Mapping):
            raise ConfigError(
                given=f"route {name!r} = {values!r:.60}",
                expected="a mapping of keys, such as {speculation: auto}",
                remedy="Write its keys below its name",
            )
        try:
            return cls(**{str(key): value for key, value in (values or {}).items()})
        except ConfigError as error:
            raise ConfigError(f"{error.given} ({name!r})", error.expected, error.remedy) from None

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

    def among(self, models: Sequence[str]) -> RouteSettings:
        """Return the settings with drafters called by their full names.

        Args:
            models: what the draft models there are called, in the order of the configuration.
        """
        if all(model == "model" for model in models):
            return self
        if "drafters" not in self.model_fields_set:
            return self.model_copy(update={"drafters": (SUFFIX, *models)})
        known = with_mixed((SUFFIX, *models))
        names = tuple(dict.fromkeys(resolved(name, known) for name in self.drafters))
        return self if names == self.drafters else self.model_copy(update={"drafters": names})

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
