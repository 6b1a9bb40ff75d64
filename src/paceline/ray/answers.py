"""What a replica says when the others ask it."""

from __future__ import annotations

from typing import Any

from paceline.metrics.snapshot import take_snapshot
from paceline.ray.records import Question, Topic
from paceline.server.service import Service
from paceline.server.status import EngineAdministration


class Answerer:
    """Answers questions about one replica.

    Args:
        service: the replica's.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._administration = EngineAdministration(service)
        self.is_ending = False
        """Whether it was asked to end."""

    async def __call__(self, question: Question) -> Any:
        """Return what was asked for: plain values, or families of series."""
        service = self._service
        match question.topic:
            case Topic.METRICS:
                service.collector.snapshot = await service.llm.runtime.call(take_snapshot)
                return list(service.registry.collect())
            case Topic.ROUTES:
                return await self._administration.route_views()
            case Topic.STATUS:
                return await self._administration.status_view()
            case Topic.DECISIONS:
                return service.decisions.of(question.detail["route"], question.detail["limit"])
            case Topic.END:
                self.is_ending = True
                report = await service.llm.runtime.shutdown(question.detail["within_s"])
                return report.num_finished, report.num_ended
