"""Routes on vLLM: put in force by a file that its engine cores watch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from paceline.config.routes import RouteSettings
from paceline.errors import ConfigError, ServingError
from paceline.vllm.bridge import Bridge
from paceline.vllm.routes_file import RouteEntry, RoutesFile, read_routes, write_routes
from paceline.vllm.speculative import Speculative


class BridgeRoutes:
    """An `Enforcement` through `routes.json`.

    Args:
        bridge: the folder.
        speculative: what vLLM drafts with.
    """

    def __init__(self, bridge: Bridge, speculative: Speculative) -> None:
        self._path = bridge.routes_path
        self._speculative = speculative
        self.last: RoutesFile | None = None
        """What the file says; none before the first `put_in_force`, where it is of no use."""
        with contextlib.suppress(ConfigError):  # of another version, or none: a new one takes its place
            self.last = read_routes(self._path)

    def check(self, name: str, settings: RouteSettings) -> None:
        """Refuse what vLLM was not started for; see `Speculative.check`."""
        self._speculative.check(name, settings)

    async def put_in_force(
        self, routes: Mapping[str, RouteSettings], default: str | None, by: Mapping[str, str], otherwise: str
    ) -> None:
        """Let the engine cores go by these routes, each from the first step after it sees the file.

        Raises:
            ServingError: the file cannot be written; the routes before stay in force.
        """
        known = {} if self.last is None else self.last.routes
        entries = {}
        for name, settings in routes.items():
            old = known.get(name)
            is_same = old is not None and old.settings == settings
            entries[name] = (
                old if old is not None and is_same else RouteEntry(settings, by.get(name, otherwise))
            )
        # Without a default, requests that name no route are refused before vLLM sees them.
        first = default or next(iter(entries))
        version = 1 if self.last is None else self.last.version
        new = RoutesFile(version, first, entries)
        if new == self.last:
            return
        new = RoutesFile(version + (self.last is not None), first, entries)
        try:
            await asyncio.to_thread(write_routes, self._path, new)
        except OSError as error:
            raise ServingError(
                given=f"{self._path}: {error.strerror}",
                expected="a file that can be written, by which vLLM hears of routes",
                remedy="Look at the disk and the folder's mode, and try again",
            ) from None
        self.last = new
