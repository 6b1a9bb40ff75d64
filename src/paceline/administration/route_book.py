"""The routes as they are in force: the configuration's, with what was changed of them at run time on top.

All of it lives on the event loop. What is in force reaches the policy through an `Enforcement`, which is
another one for each engine, so that a step sees a route's settings whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from paceline.administration.overlay import OverlayEntry, OverlayStore
from paceline.config.engine import EngineSettings
from paceline.config.routes import RouteSettings
from paceline.config.server import check_route
from paceline.errors import ConfigError, UnknownRouteError

log = logging.getLogger(__name__)

FILE = "file"
"""Who changed a route, where its configuration did."""


class Enforcement(Protocol):
    """The way to an engine's policy."""

    def check(self, name: str, settings: RouteSettings) -> None:
        """Refuse settings that the engine cannot follow.

        Raises:
            ConfigError: it cannot.
        """

    async def put_in_force(
        self, routes: Mapping[str, RouteSettings], default: str | None, by: Mapping[str, str], otherwise: str
    ) -> None:
        """Let the policy go by these routes from its next step on.

        Args:
            routes: all that requests may name from now on.
            default: the route of requests that name none.
            by: who changed a route, by name.
            otherwise: who changed those that are not in `by`, if they are different.
        """


class RouteBook:
    """What each route is set to, and by whom.

    Args:
        engine: its settings, with routes.
        store: changes made at run time.
        enforcement: the way to the policy.
    """

    def __init__(self, engine: EngineSettings, store: OverlayStore, enforcement: Enforcement) -> None:
        self._engine = engine
        self._store = store
        self._enforcement = enforcement
        self._base = dict(engine.routes)
        self._overlay = store.read()
        self._changing = asyncio.Lock()
        self.default = engine.default_route
        self.routes: Mapping[str, RouteSettings] = {}
        """The settings in force, by name."""

    async def start(self) -> None:
        """Put what was changed before the last end of the server in force again."""
        for name in self._overlay.keys() - self._base.keys():
            log.warning("changes of route %r are kept, and have no effect: there is no such route", name)
        found = dict(self._base)
        for name, entries in self._overlay.items():
            if name not in found:
                continue
            try:
                found[name] = self._checked(name, found[name], _values(entries))
            except ConfigError as error:
                log.error("changes of route %r have no effect beside the file: %s", name, error)
        await self._put_in_force(found, {name: entry_by(self._overlay[name]) for name in self._overlay})

    def base(self, name: str) -> RouteSettings:
        """Return what the file says of a route.

        Raises:
            UnknownRouteError: there is no such route.
        """
        if name not in self._base:
            raise UnknownRouteError(
                given=f"route {name!r:.120}",
                expected="one of " + ", ".join(map(repr, self._base)),
                remedy="Name one of them",
            )
        return self._base[name]

    def overlay(self, name: str) -> Mapping[str, OverlayEntry]:
        """Return what was changed of a route at run time, by key."""
        return self._overlay.get(name, {})

    async def change(self, name: str, values: Mapping[str, Any], by: str) -> None:
        """Change keys of a route from the next step on, and keep the change.

        Raises:
            UnknownRouteError: there is no such route.
            ConfigError: a key or a value is wrong, or does not go with the others; nothing is changed then.
        """
        async with self._changing:
            base = self.base(name)
            merged = {**_values(self.overlay(name)), **values}
            settings = self._checked(name, base, merged)
            plain = settings.model_dump(mode="json")
            self._store.put(name, {key: plain[key] for key in values}, by)
            self._overlay = self._store.read()
            await self._put_in_force({**self.routes, name: settings}, {name: by})

    async def reset(self, name: str, by: str) -> None:
        """Forget what was changed of a route at run time.

        Raises:
            UnknownRouteError: there is no such route.
        """
        async with self._changing:
            base = self.base(name)
            self._store.clear(name)
            self._overlay = self._store.read()
            await self._put_in_force({**self.routes, name: base}, {name: by})

    async def follow(self, engine: EngineSettings, by: str = FILE) -> list[str]:
        """Follow a configuration that was read anew; returns what is different now, in words.

        Keys with a change made at run time stay as that has them.

        Raises:
            ConfigError: what it says does not go with changes made at run time; nothing is changed then.
        """
        async with self._changing:
            base = dict(engine.routes)
            found, notes = dict(base), []
            for name, settings in base.items():
                self._enforcement.check(name, settings)
            for name, entries in self._overlay.items():
                if name in base:
                    found[name] = self._checked(name, base[name], _values(entries))
            for name in sorted(base.keys() | self._base.keys()):
                notes += self._differences(name, self._base.get(name), base.get(name))
            if engine.default_route != self.default:
                notes.append(f"the default route is {engine.default_route}")
            await self._put_in_force(found, {}, by, engine.default_route)
            # Only now, and without a pause, so that nobody sees a part of it.
            self._base, self.default = base, engine.default_route
            for note in notes:
                log.warning("configuration: %s", note)
            return notes

    def _differences(self, name: str, old: RouteSettings | None, new: RouteSettings | None) -> list[str]:
        if old is None or new is None:
            return [f"route {name} {'is new' if old is None else 'is gone'}"]
        before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
        notes = []
        for key in before:
            if before[key] == after[key]:
                continue
            kept = self.overlay(name).get(key)
            note = f"route {name}: {key} is {after[key]}"
            if kept is not None:
                note += f", and stays {kept.value}, as {kept.by} set it; reset the route to follow the file"
            notes.append(note)
        return notes

    async def _put_in_force(
        self,
        routes: dict[str, RouteSettings],
        by: Mapping[str, str],
        otherwise: str = FILE,
        default: str | None = None,
    ) -> None:
        """Let the policy know before requests do, so that it has every route that a request may name."""
        await self._enforcement.put_in_force(routes, default or self.default, by, otherwise)
        self.routes = routes

    def _checked(self, name: str, base: RouteSettings, values: Mapping[str, Any]) -> RouteSettings:
        settings = base.changed(values).among(tuple(self._engine.draft_models))
        check_route(name, settings, self._engine)
        self._enforcement.check(name, settings)
        return settings


def entry_by(entries: Mapping[str, OverlayEntry]) -> str:
    """Return who changed a route last."""
    return max(entries.values(), key=lambda entry: entry.at).by


def _values(entries: Mapping[str, OverlayEntry]) -> dict[str, Any]:
    return {key: entry.value for key, entry in entries.items()}
