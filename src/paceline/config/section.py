"""What parts of the configuration have in common: frozen, strict about names, errors that show no secret."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from paceline.errors import ConfigError


class Section(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    where: ClassVar[str] = ""
    """What the part is called in errors."""
    secrets: ClassVar[tuple[str, ...]] = ()
    """Keys whose values errors do not show."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explain(error, type(self)) from None


def _explain(error: ValidationError, section: type[Section]) -> ConfigError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return ConfigError(
            given=f"unknown key {name!r} of {section.where}",
            expected="one of " + ", ".join(section.model_fields),
            remedy=nearest(name, section.model_fields),
        )
    is_secret = name.split(".")[0] in section.secrets
    return ConfigError(
        given=f"{name} of {section.where}"
        + ("" if is_secret or first["type"] == "missing" else f" = {first['input']!r:.80}"),
        expected=first["msg"].removeprefix("Value error, ").removeprefix("Input should be "),
        remedy=f"Give {name} a value that fits",
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return what to do about a name that is not known."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Write {near[0]!r} if you meant that" if near else "Check its spelling, or leave it out"
