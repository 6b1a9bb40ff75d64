"""The endpoints that speak for all replicas, in the place of those that speak for one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from paceline.administration.admin_api import ServiceOf, check_admin
from paceline.administration.decisions import NUM_KEPT
from paceline.ray.link import HubLink
from paceline.ray.records import Topic
from paceline.ray.series import counted, exposition, merged
from paceline.ray.views import merged_decisions

router = APIRouter(tags=["operation"])


def link_of(request: Request) -> HubLink:
    """Return the line to the hub that the app was made with."""
    link: HubLink = request.app.state.link
    return link


LinkOf = Annotated[HubLink, Depends(link_of)]


@router.get("/metrics", response_class=Response)
async def metrics(link: LinkOf) -> Response:
    """Show the metrics of all replicas in Prometheus's text form, each series with its replica."""
    families = merged(await link.ask(Topic.METRICS)) + counted(await link.counts())
    return Response(exposition(families), media_type=CONTENT_TYPE_LATEST)


@router.get("/admin/routes/{name}/decisions", dependencies=[Depends(check_admin)])
async def list_decisions(
    service: ServiceOf,
    link: LinkOf,
    name: str,
    limit: Annotated[int, Query(ge=1, le=NUM_KEPT)] = 100,
    replica: Annotated[int | None, Query(ge=0)] = None,
) -> dict[str, Any]:
    """Show the latest decisions on a route, of all replicas or of one, oldest first."""
    service.book.base(name)
    found = await link.ask(Topic.DECISIONS, route=name, limit=limit)
    if replica is not None:
        found = {number: some for number, some in found.items() if number == replica}
    return {"route": name, "decisions": merged_decisions(found, limit)}
