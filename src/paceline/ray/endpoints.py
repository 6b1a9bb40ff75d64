"""The endpoints that speak for all replicas, in the place of those that speak for one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from paceline.ray.link import HubLink
from paceline.ray.records import Topic
from paceline.ray.series import counted, exposition, merged
from paceline.ray.views import merged_decisions, merged_routes, merged_status
from paceline.server.admin_api import check_admin, service_of
from paceline.server.decisions import NUM_KEPT
from paceline.server.service import Service
from paceline.server.status import NUM_DECISIONS

router = APIRouter(tags=["operation"])

ServiceOf = Annotated[Service, Depends(service_of)]


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


@router.get("/admin/routes", dependencies=[Depends(check_admin)])
async def list_routes(service: ServiceOf, link: LinkOf) -> dict[str, Any]:
    """Show every route, with each replica's report."""
    return {
        "default_route": service.book.default,
        "config_error": service.follower.error,
        "routes": merged_routes(await link.ask(Topic.ROUTES)),
    }


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


@router.get("/status")
async def status(request: Request, service: ServiceOf, link: LinkOf) -> dict[str, Any]:
    """Show what the page shows; to whoever may send requests."""
    authorization = request.headers.get("authorization")
    if not service.gate.is_admin(authorization):
        service.gate.caller(authorization)
    return merged_status(await link.ask(Topic.STATUS), NUM_DECISIONS)
