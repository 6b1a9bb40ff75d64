"""Settings from a YAML file, the environment and flags, later ones winning, as one frozen object."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from paceline.config.engine import EngineSettings
from paceline.config.server import ServeSettings
from paceline.errors import ConfigError

KEY_PREFIX = "PACELINE__"
"""Environment variables that begin so are keys of the configuration:
PACELINE__ROUTES__CHAT__SPECULATION=off."""


def load_config(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> EngineSettings:
    """Return the settings of a file, changed by the environment, changed by flags.

    Args:
        path: YAML with the fields of `EngineSettings`, `routes` and `default_route` among them; none has no
            file.
        flags: fields by name; those that are None were not given.
        environ: variables; the process's own unless given. `__` stands between a key and the key below it,
            and values are YAML.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong.
    """
    return EngineSettings(**_values(path, flags, environ))


def load_serve_config(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ServeSettings:
    """Return the settings of a server: as `load_config`, and the keys of `server` below that name.

    Args:
        path, environ: as for `load_config`.
        flags: as there; those of the server are in a mapping under "server", and win key by key.

    Raises:
        ConfigError: the file cannot be read, or a key or value is wrong.
    """
    given = dict(flags or {})
    flags = dict(given)
    server = {name: value for name, value in flags.pop("server", {}).items() if value is not None}
    values = _values(path, flags, environ)
    if server and isinstance(values.get("server", {}), Mapping):
        values["server"] = {**values.get("server", {}), **server}
    if path is None:
        return ServeSettings.of(values)
    path = path.absolute()
    return ServeSettings.of(values, path, lambda: load_serve_config(path, given, environ))


def key_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that are keys of the configuration, for another process to read them too."""
    source = os.environ if environ is None else environ
    return {name: value for name, value in source.items() if name.startswith(KEY_PREFIX)}


def _values(
    path: Path | None, flags: Mapping[str, Any] | None, environ: Mapping[str, str] | None
) -> dict[str, Any]:
    values = _read(path) if path is not None else {}
    source = os.environ if environ is None else environ
    for name, text in sorted(source.items()):
        if name.startswith(KEY_PREFIX):
            _put(values, name, _parse(text, name))
    said = {name: value for name, value in (flags or {}).items() if value is not None}
    for name, other in (("draft", "drafts"), ("drafts", "draft")):
        if name in said:
            values.pop(other, None)
    values.update(said)
    return values


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            given=f"configuration {str(path)!r}: {error}",
            expected="a readable YAML file",
            remedy="Check the path and the file's encoding",
        ) from None
    found = _parse(text, str(path))
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(
            given=f"configuration {str(path)!r} with a {type(found).__name__} at its top",
            expected="a mapping of keys, such as target: NAME",
            remedy="Write `key: value` lines",
        )
    return found


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(
            given=f"{where}{line}: {getattr(error, 'problem', None) or error}",
            expected="YAML",
            remedy="Correct that line",
        ) from None


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    """Set one key below others."""
    keys = [key.lower() for key in name.removeprefix(KEY_PREFIX).split("__")]
    if not all(keys):
        raise ConfigError(
            given=f"environment variable {name}",
            expected="names with __ between them, such as PACELINE__ROUTES__CHAT__SPECULATION",
            remedy="Correct or unset it",
        )
    for key in keys[:-1]:
        below = values.get(key)
        values[key] = dict(below) if isinstance(below, Mapping) else {}
        values = values[key]
    values[keys[-1]] = value
