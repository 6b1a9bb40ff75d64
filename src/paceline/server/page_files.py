"""The page at `/`: plain files that ask this server alone, and that a browser may not make ask any other."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent / "page"
FILES = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "status.js": "text/javascript; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> FileResponse:
    """Return the page."""
    return _file("index.html")


@router.get("/page/{name}")
async def file(name: str) -> FileResponse:
    """Return a file of the page."""
    if name not in FILES:
        raise HTTPException(404)
    return _file(name)


def _file(name: str) -> FileResponse:
    return FileResponse(FOLDER / name, media_type=FILES[name], headers=HEADERS)
