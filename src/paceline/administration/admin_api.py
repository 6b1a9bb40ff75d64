"""Administration: routes as they are in force, changed and explained while requests run."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Body, Depends, Query, Request

from paceline.administration.access import Gate
from paceline.administration.decisions import NUM_KEPT, DecisionHistory
from paceline.administration.reload import ConfigFollower
from paceline.administration.route_book import RouteBook
from paceline.errors import ConfigError


class Administered(Protocol):
    """What these endpoints administrate: routes, and what an engine makes of them."""

    @property
    def gate(self) -> Gate:
        """Who may."""

    @property
    def book(self) -> RouteBook:
        """The routes."""

    @property
    def follower(self) -> ConfigFollower:
        """Of the configuration file."""

    @property
    def decisions(self) -> DecisionHistory:
        """The latest."""

    async def route_views(self) -> list[dict[str, Any]]:
        """Return every route that requests may name: `settings_view`, and what came of it."""

    async def route_view(self, name: str) -> dict[str, Any]:
        """Return one of them."""

    async def status_view(self) -> dict[str, Any]:
        """Return what `GET /status` answers."""


def administered(request: Request) -> Administered:
    """Return what the app was made with."""
    found: Administered = request.app.state.administered
    return found


def check_admin(request: Request) -> str:
    """Return who administrates, and refuse whoever may not; see `Gate.check_admin`."""
    host = request.client.host if request.client is not None else None
    return administered(request).gate.check_admin(request.headers.get("authorization"), host)


AdminOf = Annotated[str, Depends(check_admin)]
ServiceOf = Annotated[Administered, Depends(administered)]

router = APIRouter(prefix="/admin", tags=["administration"], dependencies=[Depends(check_admin)])
status_router = APIRouter(tags=["operation"])


@router.get("/routes")
async def list_routes(service: ServiceOf) -> dict[str, Any]:
    """Show every route: file, overlay, what is in force, and its report."""
    return {
        "default_route": service.book.default,
        "config_error": service.follower.error,
        "routes": await service.route_views(),
    }


@router.patch("/routes/{name}")
async def change_route(
    service: ServiceOf, admin: AdminOf, name: str, values: Annotated[dict[str, Any], Body()]
) -> dict[str, Any]:
    """Change keys of a route from the next step on, requests that run included; the change is kept."""
    if not values:
        raise ConfigError(
            given="a change without a key", expected='keys such as {"speculation": "off"}', remedy="Name one"
        )
    await service.book.change(name, values, admin)
    return await service.route_view(name)


@router.delete("/routes/{name}/overlay")
async def reset_route(service: ServiceOf, admin: AdminOf, name: str) -> dict[str, Any]:
    """Let a route be what the file says again."""
    await service.book.reset(name, admin)
    return await service.route_view(name)


@router.get("/routes/{name}/decisions")
async def list_decisions(
    service: ServiceOf, name: str, limit: Annotated[int, Query(ge=1, le=NUM_KEPT)] = 100
) -> dict[str, Any]:
    """Show the latest decisions on a route, oldest first."""
    service.book.base(name)
    return {"route": name, "decisions": service.decisions.of(name, limit)}


@router.post("/reload")
async def reload(service: ServiceOf, admin: AdminOf) -> dict[str, Any]:
    """Read the configuration again, now."""
    return {"changes": await service.follower.reload(admin)}


@status_router.get("/status")
async def status(request: Request, service: ServiceOf) -> dict[str, Any]:
    """Show what the page shows; to whoever may send requests."""
    authorization = request.headers.get("authorization")
    if not service.gate.is_admin(authorization):
        service.gate.caller(authorization)
    return await service.status_view()
