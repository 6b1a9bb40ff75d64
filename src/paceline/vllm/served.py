"""What the serving process has beside vLLM's own: routes, who may change them, and what came of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from paceline.administration.access import Gate
from paceline.administration.decisions import NUM_KEPT, read_tail
from paceline.administration.overlay import OverlayStore
from paceline.administration.reload import ConfigFollower
from paceline.administration.route_book import RouteBook
from paceline.administration.views import settings_view
from paceline.clock import monotonic
from paceline.config.server import ServeSettings
from paceline.vllm.bridge import Bridge
from paceline.vllm.bridge_routes import BridgeRoutes
from paceline.vllm.engine_file import EngineFile
from paceline.vllm.engines import read_engines
from paceline.vllm.speculative import Speculative, speculative_of

NUM_DECISIONS = 50
LOOK_S, CHANGE_S = 0.02, 1.0
"""How often, and for how long, engine cores are looked at after a change."""


class BridgeDecisions:
    """The decisions of all engine cores, as their logs have them.

    Args:
        bridge: the folder.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def of(self, route: str | None = None, limit: int = NUM_KEPT) -> list[dict[str, Any]]:
        """Return the latest decisions, of one route or of all, oldest first, each with the rank it is of."""
        found = []
        for rank in self._bridge.ranks():
            entries = read_tail(self._bridge.decisions_path(rank))
            found += [{**one, "engine": rank} for one in entries if route in (None, one["route"])]
        found.sort(key=lambda one: float(one.get("time", 0.0)))
        return found[-limit:]


class VllmService:
    """Routes of a vLLM, administrated: an `Administered`.

    Args:
        settings: the configuration.
        bridge: the folder to the engine cores.

    Raises:
        ConfigError: the configuration is not one for vLLM, or changes of routes cannot be kept.
    """

    def __init__(self, settings: ServeSettings, bridge: Path) -> None:
        self.settings = settings
        self.bridge = Bridge(bridge)
        self.speculative: Speculative = speculative_of(settings)
        self._enforcement = BridgeRoutes(self.bridge, self.speculative)
        self._store = OverlayStore(settings.state_path)
        self.gate = Gate(settings.server)
        self.book = RouteBook(settings.engine, self._store, self._enforcement)
        self.follower = ConfigFollower(settings, self.book)
        self.decisions = BridgeDecisions(self.bridge)

    async def start(self) -> None:
        """Put routes in force as they were left."""
        await self.book.start()

    def close(self) -> None:
        """Let go of files."""
        self._store.close()

    async def route_views(self) -> list[dict[str, Any]]:
        """Return every route that requests may name."""
        engines = await asyncio.to_thread(read_engines, self.bridge)
        return [self._view(name, engines) for name in self.book.routes]

    async def route_view(self, name: str) -> dict[str, Any]:
        """Return one of them, once the engine cores took its last change up, unless they are long over it."""
        ends = monotonic() + CHANGE_S
        while True:
            engines = await asyncio.to_thread(read_engines, self.bridge)
            if not any(map(self._is_behind, engines)) or monotonic() > ends:
                return self._view(name, engines)
            await asyncio.sleep(LOOK_S)

    async def status_view(self) -> dict[str, Any]:
        """Return all there is to know at a moment."""
        engines = await asyncio.to_thread(read_engines, self.bridge)
        models = {"target": self.settings.vllm.model or self.settings.engine.target}
        if self.speculative.config is not None and "model" in self.speculative.config:
            models["draft"] = str(self.speculative.config["model"])
        return {
            "model": self.settings.model_name,
            "models": {role: {"name": name} for role, name in models.items()},
            "default_route": self.book.default,
            "has_admin": bool(self.settings.server.tokens),
            "routes": [self._view(name, engines) for name in self.book.routes],
            "engines": [self._engine_view(engine) for engine in engines],
            "decisions": await asyncio.to_thread(self.decisions.of, limit=NUM_DECISIONS),
        }

    def _view(self, name: str, engines: list[EngineFile]) -> dict[str, Any]:
        counts = [engine.counts.routes[name] for engine in engines if name in engine.counts.routes]
        steps = sum(one.recent_steps for one in counts)
        reports = {
            engine.rank: engine.reports[name].to_json() for engine in engines if name in engine.reports
        }
        return {
            **settings_view(self.book, name),
            "report": next(iter(reports.values()), None),
            "reports": reports,
            "acceptance_length": sum(one.recent_tokens for one in counts) / steps if steps else None,
            "num_answers": sum(sum(one.num_answers.values()) for one in counts),
            "num_output_tokens": sum(one.num_output_tokens for one in counts),
            "pending_engines": [engine.rank for engine in engines if self._is_behind(engine)],
        }

    def _is_behind(self, engine: EngineFile) -> bool:
        """Whether an engine core has not taken up the latest routes: without requests it makes no step."""
        last = self._enforcement.last
        return last is not None and engine.routes_version != last.version

    def _engine_view(self, engine: EngineFile) -> Mapping[str, Any]:
        value = engine.to_json()
        shown = {key: one for key, one in value.items() if key not in ("format", "counts", "reports")}
        return {**shown, "is_behind": self._is_behind(engine)}


@contextlib.asynccontextmanager
async def running(service: VllmService) -> AsyncIterator[VllmService]:
    """Follow the configuration file while the block runs."""
    await service.start()
    following = asyncio.create_task(service.follower.run())
    try:
        yield service
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        service.close()
