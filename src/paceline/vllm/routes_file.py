"""Routes on their way from the serving process to the engine cores: a file that is replaced, and watched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from paceline.config.routes import RouteSettings
from paceline.errors import ConfigError
from paceline.vllm.bridge import broken, read_json, replace_json

FORMAT = 1
WHAT = "a file of routes"


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """One route as it is to be."""

    settings: RouteSettings
    """All of them, overlays included: what is in force."""
    by: str = "configuration"
    """Who changed it last: a person's key, or the configuration."""


@dataclass(frozen=True, slots=True)
class RoutesFile:
    """All routes as they are to be."""

    version: int
    """Counts up with each change, from 1; an engine core says which one it goes by."""
    default_route: str
    """The route of requests that name none."""
    routes: Mapping[str, RouteEntry]

    def __post_init__(self) -> None:
        if self.default_route not in self.routes:
            raise ConfigError(
                given=f"default_route = {self.default_route!r}",
                expected="one of the routes: " + (", ".join(self.routes) or "there is none"),
                remedy="Add that route, or name another default",
            )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, with the version of this form."""
        return {
            "format": FORMAT,
            "version": self.version,
            "default_route": self.default_route,
            "routes": {
                name: {"settings": entry.settings.model_dump(mode="json"), "by": entry.by}
                for name, entry in self.routes.items()
            },
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the routes of plain values.

        Raises:
            ConfigError: they are none.
        """
        version, default, routes = (value.get(key) for key in ("version", "default_route", "routes"))
        is_sound = isinstance(version, int) and not isinstance(version, bool) and version >= 1
        if not is_sound or not isinstance(default, str) or not isinstance(routes, Mapping):
            raise ConfigError(
                given=f"routes of version {version!r}, default {default!r:.60} and routes {routes!r:.60}",
                expected="version, a number from 1; default_route, a name; routes, settings by name",
                remedy="Let `paceline vllm serve` write the file",
            )
        assert isinstance(version, int)
        return cls(version, default, {str(name): _entry(str(name), one) for name, one in routes.items()})


def _entry(name: str, value: Any) -> RouteEntry:
    if not isinstance(value, Mapping) or not isinstance(value.get("by"), str) or "settings" not in value:
        raise ConfigError(
            given=f"route {name!r} = {value!r:.60}",
            expected="its settings, and by whom they were changed",
            remedy="Let `paceline vllm serve` write the file",
        )
    return RouteEntry(RouteSettings.of(name, value["settings"]), value["by"])


def write_routes(path: Path, routes: RoutesFile) -> None:
    """Replace the file of routes.

    Raises:
        OSError: it could not be written; the old one is in force still.
    """
    replace_json(path, routes.to_json(), is_durable=True)


def read_routes(path: Path) -> RoutesFile:
    """Return the routes of a file.

    Raises:
        ConfigError: there is no such file, or it cannot be used.
    """
    try:
        value = read_json(path, WHAT, FORMAT)
    except FileNotFoundError:
        raise broken(path, WHAT, "there is no such file") from None
    try:
        return RoutesFile.from_json(value)
    except ConfigError as error:
        raise broken(path, WHAT, str(error)) from None


class RoutesWatcher:
    """Reads a file of routes again whenever it was replaced. One look costs a `stat`.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.error: str | None = None
        """Why the file that is there is not in force; none if it is."""
        self._seen: tuple[int, int, int] | None = None

    def poll(self) -> RoutesFile | None:
        """Return the routes if the file is another one than at the last look; none if not, or if it is of no
        use, which `error` says then."""
        try:
            found = os.stat(self.path)  # noqa: PTH116  (a third of the time that Path.stat takes, in every step)
        except OSError as error:
            self._seen = None
            self.error = f"{self.path}: {type(error).__name__}: {error.strerror}"
            return None
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            routes = read_routes(self.path)
        except ConfigError as error:
            self.error = str(error)
            return None
        self.error = None
        return routes
