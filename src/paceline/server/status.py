"""All there is to know of a server's routes at a moment, as plain values: for the page and the
administration."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from paceline.metrics.snapshot import Snapshot, take_snapshot
from paceline.server.service import Service

NUM_DECISIONS = 50


async def snapshot(service: Service) -> Snapshot:
    """Look at the engine between two steps."""
    return await service.llm.runtime.call(take_snapshot)


async def routes_view(service: Service) -> list[dict[str, Any]]:
    """Return every route that requests may name."""
    now = await snapshot(service)
    return [route_view(service, name, now) for name in service.book.routes]


def route_view(service: Service, name: str, now: Snapshot) -> dict[str, Any]:
    """Return one route: what the file says, what was changed, what is in force, and what came of it."""
    counts = service.counts.routes.get(name)
    report = now.reports.get(name)
    return {
        "name": name,
        "file": service.book.base(name).model_dump(mode="json", exclude_unset=True),
        "overlay": {key: asdict(entry) for key, entry in service.book.overlay(name).items()},
        "in_force": service.book.routes[name].model_dump(mode="json"),
        "report": None if report is None else report.to_json(),
        "acceptance_length": None if counts is None else counts.acceptance_length,
        "num_answers": 0 if counts is None else sum(counts.num_answers.values()),
        "num_output_tokens": 0 if counts is None else counts.num_output_tokens,
    }


async def status_view(service: Service) -> dict[str, Any]:
    """Return what the page shows."""
    now = await snapshot(service)
    return {
        "model": service.model_name,
        "models": {role: {"name": one[0], "digest": one[1]} for role, one in service.models.items()},
        "default_route": service.book.default,
        "has_admin": bool(service.settings.server.tokens),
        "routes": [route_view(service, name, now) for name in service.book.routes],
        "engine": {
            "num_running": now.num_running,
            "num_waiting": now.num_waiting,
            "num_preemptions": now.num_preemptions,
            "kv": asdict(now.kv),
        },
        "decisions": service.decisions.of(limit=NUM_DECISIONS),
    }
