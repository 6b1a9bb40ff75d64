"""What administration says of all replicas, through any one of them."""

from __future__ import annotations

from typing import Any

from paceline.errors import ServingError
from paceline.ray.link import HubLink
from paceline.ray.records import Topic
from paceline.ray.views import merged_routes, merged_status
from paceline.server.service import Service
from paceline.server.status import NUM_DECISIONS, EngineAdministration


class ReplicasAdministration(EngineAdministration):
    """What the endpoints of the administration need: routes, and what all engines make of them.

    The follower is the hub's, which follows the configuration; the decisions are this replica's, and
    `endpoints.list_decisions` has those of all.

    Args:
        service: this replica's.
        link: the line to the hub, and so to the others.
    """

    def __init__(self, service: Service, link: HubLink) -> None:
        super().__init__(service)
        self._link = link

    async def route_views(self) -> list[dict[str, Any]]:
        """Return every route that requests may name, with each replica's report."""
        return merged_routes(await self._ask(Topic.ROUTES))

    async def route_view(self, name: str) -> dict[str, Any]:
        """Return one of them."""
        return next(one for one in await self.route_views() if one["name"] == name)

    async def status_view(self) -> dict[str, Any]:
        """Return what the page shows."""
        return merged_status(await self._ask(Topic.STATUS), NUM_DECISIONS)

    async def _ask(self, topic: Topic) -> dict[int, Any]:
        answers = await self._link.ask(topic)
        if not answers:
            raise ServingError(
                given="replicas of which none answered in time",
                expected="at least one that does",
                remedy="Try again in some seconds",
            )
        return answers
