"""Settings of routes as plain values, for the endpoints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from paceline.administration.route_book import RouteBook


def settings_view(book: RouteBook, name: str) -> dict[str, Any]:
    """Return one route: what the file says, what was changed of it, and what is in force."""
    return {
        "name": name,
        "file": book.base(name).model_dump(mode="json", exclude_unset=True),
        "overlay": {key: asdict(entry) for key, entry in book.overlay(name).items()},
        "in_force": book.routes[name].model_dump(mode="json"),
    }
