"""A replica's routes and configuration: those of the hub, put in force here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.administration.overlay import OverlayStore
from paceline.administration.reload import ConfigFollower
from paceline.administration.route_book import FILE, RouteBook
from paceline.config.engine import EngineSettings
from paceline.config.server import ServeSettings
from paceline.ray.link import HubLink
from paceline.ray.records import SharedRoutes
from paceline.runtime import Runtime
from paceline.server.engine_routes import EngineRoutes


class FollowingBook(RouteBook):
    """A route book that changes when the hub's does.

    Args:
        engine: settings of this replica's engine, with routes.
        runtime: where the policy is.
        link: the line to the hub, which runs.
    """

    def __init__(self, engine: EngineSettings, runtime: Runtime, link: HubLink) -> None:
        super().__init__(engine, OverlayStore(None), EngineRoutes(runtime))
        self._link = link

    async def start(self) -> None:
        """Put the routes of all replicas in force here."""
        await self.take(await self._link.first_routes())

    async def take(self, routes: SharedRoutes) -> None:
        """Put routes in force; from the engine's next step on."""
        async with self._changing:
            await self._put_in_force(dict(routes.in_force), routes.changed_by, FILE, routes.default)
            self._base, self._overlay = dict(routes.base), {
                name: dict(entries) for name, entries in routes.overlay.items()
            }  # fmt: skip
            self.default = routes.default

    async def change(self, name: str, values: Mapping[str, Any], by: str) -> None:
        """Change a route of all replicas; see `RouteBook.change`."""
        await self._link.change(name, values, by)

    async def reset(self, name: str, by: str) -> None:
        """Reset a route of all replicas; see `RouteBook.reset`."""
        await self._link.reset(name, by)


class FollowingConfig(ConfigFollower):
    """Where the hub follows the file, and this replica the hub.

    Args:
        settings: of this replica, without a file.
        book: its routes.
        link: the line to the hub.
    """

    def __init__(self, settings: ServeSettings, book: FollowingBook, link: HubLink) -> None:
        super().__init__(settings, book)
        self._routes = book
        self._link = link

    async def take(self, routes: SharedRoutes) -> None:
        """Follow the hub."""
        await self._routes.take(routes)
        self.error = routes.config_error

    async def reload(self, by: str = FILE) -> list[str]:
        """Let the hub read the file again; see `ConfigFollower.reload`."""
        return await self._link.reload(by)
