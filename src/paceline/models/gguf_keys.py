"""Typed access to the metadata of one architecture in a GGUF file, which comes from anywhere."""

from __future__ import annotations

from typing import Any

from paceline.errors import ModelError, ModelFileError
from paceline.models.decoder_config import unsupported_feature
from paceline.models.gguf_file import GGUFFile


class GGUFKeys:
    """The metadata under one architecture's prefix.

    Every accessor raises `ModelFileError` for a value that is not what its name says.
    """

    def __init__(self, file: GGUFFile, prefix: str) -> None:
        self.metadata, self.prefix, self.path = file.metadata, prefix, file.path

    def get(self, name: str) -> Any:
        """Return any value; none where it is absent."""
        return self.metadata.get(f"{self.prefix}.{name}")

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a positive whole number."""
        value = self._uniform(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(name, value, "a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a positive finite number."""
        value = self._uniform(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.wrong(name, value, "a positive number")
        return float(value)

    def _uniform(self, name: str) -> Any:
        """Some keys hold one value a layer; all equal is one value."""
        value = self.get(name)
        if isinstance(value, list):
            if not value or any(item != value[0] for item in value):
                raise unsupported_feature(
                    f"{self.prefix}.{name} that differs between layers", "one value for all"
                )
            return value[0]
        return value

    def wrong(self, name: str, value: Any, expected: str) -> ModelError:
        """Return the error for a key whose value makes no sense."""
        shown = "missing" if value is None else repr(value)
        return ModelFileError(
            given=f"{self.path}: metadata key {self.prefix}.{name} is {shown}",
            expected=expected,
            remedy="Convert or fetch the model anew",
        )
