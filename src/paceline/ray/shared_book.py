"""The one book of routes that all replicas follow: it checks and keeps changes, and has no engine itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from paceline.administration.overlay import OverlayStore
from paceline.administration.route_book import FILE, RouteBook
from paceline.config.engine import EngineSettings
from paceline.config.routes import RouteSettings
from paceline.ray.records import SharedRoutes


class _Changes:
    """An `Enforcement` that notes who changed which route last; replicas put them in force."""

    def __init__(self) -> None:
        self._routes: Mapping[str, RouteSettings] = {}
        self.by: dict[str, str] = {}

    def check(self, name: str, settings: RouteSettings) -> None:
        """Accept whatever `check_route` does: the embedded engine follows all of it."""

    async def put_in_force(
        self, routes: Mapping[str, RouteSettings], default: str | None, by: Mapping[str, str], otherwise: str
    ) -> None:
        """Note the changes."""
        for name, settings in routes.items():
            if self._routes.get(name) != settings:
                self.by[name] = by.get(name, otherwise)
        self._routes = dict(routes)


class SharedBook(RouteBook):
    """A route book whose changes are put in force by others.

    Args:
        engine: settings of the replicas' engines, with routes.
        store: changes made at run time; nobody else writes to it.
        on_change: told after each change.
    """

    def __init__(self, engine: EngineSettings, store: OverlayStore, on_change: Callable[[], None]) -> None:
        self._changes = _Changes()
        super().__init__(engine, store, self._changes)
        self._on_change = on_change
        # Never one that an earlier hub gave out, so that replicas see that they have to follow.
        self._version = time.time_ns()

    def state(self, config_error: str | None) -> SharedRoutes:
        """Return the routes as they are to be in force everywhere."""
        return SharedRoutes(
            self._version,
            self.default,
            dict(self._base),
            {name: dict(entries) for name, entries in self._overlay.items()},
            dict(self.routes),
            dict(self._changes.by),
            config_error,
        )

    def touch(self) -> None:
        """Let replicas look again."""
        self._version += 1
        self._on_change()

    async def start(self) -> None:
        """Take up what was changed before the last end."""
        await super().start()
        self.touch()

    async def change(self, name: str, values: Mapping[str, Any], by: str) -> None:
        """Change keys of a route; see `RouteBook.change`."""
        await super().change(name, values, by)
        self.touch()

    async def reset(self, name: str, by: str) -> None:
        """Forget what was changed of a route; see `RouteBook.reset`."""
        await super().reset(name, by)
        self.touch()

    async def follow(self, engine: EngineSettings, by: str = FILE) -> list[str]:
        """Follow a configuration that was read anew; see `RouteBook.follow`."""
        notes = await super().follow(engine, by)
        self.touch()
        return notes
