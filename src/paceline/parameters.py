"""The base of user-given parameters, and those that say what form an answer must have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from paceline.errors import InvalidParameterError

JsonSchema = Mapping[str, Any] | bool


def explain(error: ValidationError, owner: str) -> InvalidParameterError:
    """Return the first fault of a parameter object as an error of ours."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"]) or owner
    if first["type"] == "extra_forbidden":
        return InvalidParameterError(
            given=f"unknown parameter {name!r}",
            expected=f"one of the parameters of {owner}",
            remedy="Check its spelling, or leave it out",
        )
    return InvalidParameterError(
        given=f"{name} = {first['input']!r:.200}",
        expected=first["msg"].removeprefix("Value error, ").removeprefix("Input should be "),
        remedy="Change the value, or leave it out to take the default",
    )


class Parameters(BaseModel):
    """Base of user-given parameters: frozen, strict about names, typed errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self).__name__) from None


class StructuredOutput(Parameters):
    """A form that the whole answer has: exactly one of these is given.

    Every token is chosen among those with which the text so far can still be completed to that form, so an
    answer that ends by itself has it: end tokens, `stop_token_ids` among them, come only once it is whole.
    One that `max_tokens` or a stop string cuts off is a beginning of such a text.
    """

    json_schema: JsonSchema | None = None
    """A JSON schema, as a mapping or as JSON text. A keyword that cannot be held to is refused."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    r"""A regular expression that the whole text matches, without anchors or look-around. `\d` is 0 to 9."""
    choice: tuple[str, ...] = ()
    """The text is one of these."""

    @field_validator("json_schema", mode="before")
    @classmethod
    def _schema_from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"JSON text ({error})") from None

    @field_validator("choice", mode="before")
    @classmethod
    def _no_choice_is_empty(cls, value: Any) -> Any:
        return () if value is None else value

    @field_validator("regex")
    @classmethod
    def _no_open_escape(cls, value: str | None) -> str | None:
        # llguidance would drop it without a word.
        if value is not None and (len(value) - len(value.rstrip("\\"))) % 2:
            raise ValueError("an expression that does not end in the middle of an escape")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [self.json_schema is not None, self.json_object, self.regex is not None, bool(self.choice)]
        if sum(given) != 1:
            raise ValueError("exactly one of json_schema, json_object, regex and choice")
        if self.regex == "" or "" in self.choice:
            raise ValueError("a form that has at least one character")
        return self
