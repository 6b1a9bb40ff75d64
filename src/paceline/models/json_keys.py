"""Typed access to the keys of a `config.json`, which comes from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ModelError, ModelFileError


class JsonKeys:
    """A JSON object and where it is from. A key that is null counts as absent.

    Every accessor raises `ModelFileError` for a value that is not what its name says.
    """

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self.values = path, values

    def get(self, name: str, default: Any = None) -> Any:
        """Return any value."""
        value = self.values.get(name)
        return default if value is None else value

    def table(self, name: str) -> JsonKeys | None:
        """Return an object; none where it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return JsonKeys(self.path, value)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a positive whole number."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(name, "a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive finite number."""
        value = self.get(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.wrong(name, "a positive number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Return a truth value."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def wrong(self, name: str, expected: str) -> ModelError:
        """Return the error for a key whose value makes no sense."""
        shown = repr(self.values[name]) if name in self.values else "missing"
        return ModelFileError(
            given=f"{self.path}: {name} is {shown}", expected=expected, remedy="Fetch the model anew"
        )
