"""All there is to know of a server's routes at a moment, as plain values: for the page and the
administration."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from paceline.administration.access import Gate
from paceline.administration.decisions import DecisionHistory
from paceline.administration.reload import ConfigFollower
from paceline.administration.route_book import RouteBook
from paceline.administration.views import settings_view
from paceline.metrics.snapshot import Snapshot, take_snapshot
from paceline.server.service import Service

NUM_DECISIONS = 50


class EngineAdministration:
    """What the endpoints of the administration need of a service.

    Args:
        service: the service.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def gate(self) -> Gate:
        """Who may."""
        return self._service.gate

    @property
    def book(self) -> RouteBook:
        """The routes."""
        return self._service.book

    @property
    def follower(self) -> ConfigFollower:
        """Of the configuration file."""
        return self._service.follower

    @property
    def decisions(self) -> DecisionHistory:
        """The latest."""
        return self._service.decisions

    async def route_views(self) -> list[dict[str, Any]]:
        """Return every route that requests may name."""
        return self._route_views(await self._snapshot())

    async def route_view(self, name: str) -> dict[str, Any]:
        """Return one of them."""
        return self._route_view(name, await self._snapshot())

    async def status_view(self) -> dict[str, Any]:
        """Return what the page shows."""
        now = await self._snapshot()
        service = self._service
        return {
            "model": service.model_name,
            "models": {role: {"name": one[0], "digest": one[1]} for role, one in service.models.items()},
            "default_route": service.book.default,
            "has_admin": bool(service.settings.server.tokens),
            "routes": self._route_views(now),
            "engine": {
                "num_running": now.num_running,
                "num_waiting": now.num_waiting,
                "num_preemptions": now.num_preemptions,
                "kv": asdict(now.kv),
            },
            "decisions": service.decisions.of(limit=NUM_DECISIONS),
        }

    async def _snapshot(self) -> Snapshot:
        """Look at the engine between two steps."""
        return await self._service.llm.runtime.call(take_snapshot)

    def _route_views(self, now: Snapshot) -> list[dict[str, Any]]:
        return [self._route_view(name, now) for name in self._service.book.routes]

    def _route_view(self, name: str, now: Snapshot) -> dict[str, Any]:
        counts = self._service.counts.routes.get(name)
        report = now.reports.get(name)
        return {
            **settings_view(self._service.book, name),
            "report": None if report is None else report.to_json(),
            "acceptance_length": None if counts is None else counts.acceptance_length,
            "num_answers": 0 if counts is None else sum(counts.num_answers.values()),
            "num_output_tokens": 0 if counts is None else counts.num_output_tokens,
        }
