"""Follows the configuration file: routes change with it, everything else waits for the next start."""

from __future__ import annotations

import asyncio
import hashlib
import logging

from paceline.administration.route_book import FILE, RouteBook
from paceline.config.server import ServeSettings
from paceline.errors import ConfigError, PacelineError, ShutDownError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class ConfigFollower:
    """Looks at the file's bytes now and then, since a mounted file may change in ways that no event tells.

    Args:
        settings: as they were read.
        book: the routes.
    """

    def __init__(self, settings: ServeSettings, book: RouteBook) -> None:
        self._settings = settings
        self._book = book
        self._digest = self._read_digest()
        self.error: str | None = None
        """Why the file as it is now is not in force; none where it is."""

    async def run(self) -> None:
        """Follow the file until cancelled."""
        while self._settings.path is not None:
            await asyncio.sleep(LOOK_EVERY_S)
            digest = await asyncio.to_thread(self._read_digest)
            if digest == self._digest:
                continue
            self._digest = digest
            try:
                await self.reload()
            except ShutDownError:
                return
            except PacelineError as error:
                log.error("the changed configuration is refused, and the one before stays: %s", error)
            except Exception:
                log.exception("the changed configuration could not be followed; the one before stays")

    async def reload(self, by: str = FILE) -> list[str]:
        """Read the file again and put its routes in force; returns what is different, in words.

        Raises:
            ConfigError: it cannot be read, or is wrong; everything stays as it was.
        """
        try:
            if self._settings.read_again is None:
                raise ConfigError(
                    given="a server without a configuration file",
                    expected="one that was started with --config",
                    remedy="Change its routes with PATCH /admin/routes/NAME",
                )
            new = await asyncio.to_thread(self._settings.read_again)
            notes = await self._book.follow(new.engine, by)
        except PacelineError as error:
            self.error = str(error)
            raise
        self.error = None
        later = self._waiting(new)
        if later:
            note = "takes effect at the next start: " + ", ".join(later)
            log.warning("configuration: %s", note)
            notes = [*notes, note]
        return notes

    def _waiting(self, new: ServeSettings) -> list[str]:
        """Return the keys whose new values are not in force."""
        mine, other = self._settings.engine, new.engine
        changed = [
            name
            for name in type(mine).model_fields
            if name not in ("routes", "default_route") and getattr(mine, name) != getattr(other, name)
        ]
        server, its = self._settings.server, new.server
        changed += [
            f"server.{name}"
            for name in type(server).model_fields
            if getattr(server, name) != getattr(its, name)
        ]
        for name in ("capture", "vllm"):
            if getattr(self._settings, name) != getattr(new, name):
                changed.append(name)
        return changed

    def _read_digest(self) -> bytes | None:
        if self._settings.path is None:
            return None
        try:
            return hashlib.sha256(self._settings.path.read_bytes()).digest()
        except OSError:
            return None
