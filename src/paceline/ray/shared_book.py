"""The one book of routes that all replicas follow: it checks and keeps changes, and has no engine itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from paceline.config.engine import EngineSettings
from paceline.config.routes import RouteSettings
from paceline.ray.records import SharedRoutes
from paceline.server.overlay import OverlayStore
from paceline.server.route_book import FILE, RouteBook


class SharedBook(RouteBook):
    """A route book whose changes are put in force by others.

    Args:
        engine: settings of the replicas' engines, with routes.
        store: changes made at run time; nobody else writes to it.
        on_change: told after each change.
    """

    def __init__(self, engine: EngineSettings, store: OverlayStore, on_change: Callable[[], None]) -> None:
        super().__init__(engine, store, cast(Any, None))
        self._on_change = on_change
        self._changed_by: dict[str, str] = {}
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
            dict(self._changed_by),
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

    async def _put_in_force(
        self,
        routes: dict[str, RouteSettings],
        by: Mapping[str, str],
        otherwise: str = FILE,
        default: str | None = None,
    ) -> None:
        for name, settings in routes.items():
            if self.routes.get(name) != settings:
                self._changed_by[name] = by.get(name, otherwise)
        self.routes = routes
