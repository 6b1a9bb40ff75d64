"""Publishes all that is counted."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from paceline.errors import ShutDownError
from paceline.metrics.snapshot import take_snapshot
from paceline.server.service import Service

router = APIRouter(tags=["operation"])


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Show all metrics in Prometheus's text form."""
    service: Service = request.app.state.service
    with contextlib.suppress(ShutDownError):  # then the engine was last looked at before it stopped
        service.collector.snapshot = await service.llm.runtime.call(take_snapshot)
    return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)
