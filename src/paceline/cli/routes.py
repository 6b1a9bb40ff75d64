"""`paceline routes`: the routes of a server that runs, shown, switched and explained."""

from __future__ import annotations

import datetime
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import yaml

from paceline.cli.output import print_fields, print_json, print_table
from paceline.config.file import load_serve_config
from paceline.config.settings import load_settings
from paceline.errors import (
    AuthenticationError,
    ConfigError,
    ForbiddenError,
    PacelineError,
    ServingError,
    UnknownRouteError,
)

TIMEOUT_S = 60.0
_ERRORS: dict[int, type[PacelineError]] = {
    400: ConfigError,
    401: AuthenticationError,
    403: ForbiddenError,
    404: UnknownRouteError,
}


class Administration:
    """The administration of one server.

    Args:
        url: its address.
        token: its admin token.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._token = token

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return its answer.

        Raises:
            PacelineError: the server refused it, or does not answer.
        """
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        # A proxy is for other hosts; a token should not pass through one by accident.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except (OSError, ValueError) as error:
            raise ServingError(
                given=f"no answer from {self._url} ({error})",
                expected="a Paceline server",
                remedy="Start one with paceline serve, or say with --url where it is",
            ) from None


def _refusal(error: urllib.error.HTTPError) -> PacelineError:
    kind = _ERRORS.get(error.code, ServingError)
    try:
        message = str(json.load(error)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = f"status {error.code}"
    given, _, rest = message.partition("; expected ")
    expected, _, remedy = rest.rpartition(". ")
    return kind(given, expected or "another answer", remedy.rstrip(".") or "Look into the server's log")


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which server is meant."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document."),
        click.option("--config", type=click.Path(path_type=Path), metavar="FILE.yaml",
                     help="Take address and token from the server's configuration."),
        click.option("--url", metavar="URL",
                     help="Address of the server.  [default: PACELINE_URL, http://127.0.0.1:8000]"),
    ):  # fmt: skip
        command = option(command)
    return command


def _administration(url: str | None, config: Path | None) -> Administration:
    environment = load_settings()
    token, address = environment.admin_token, environment.url
    if config is not None:
        server = load_serve_config(config).server
        host = "127.0.0.1" if server.host in ("0.0.0.0", "::") else server.host
        address = f"http://[{host}]:{server.port}" if ":" in host else f"http://{host}:{server.port}"
        if token is None and len(server.tokens) == 1:
            (secret,) = server.tokens.values()
            token = secret.get_secret_value()
        elif token is None and server.admin_token is not None:
            token = server.admin_token.get_secret_value()
    if not token:
        raise ConfigError(
            given="no admin token",
            expected="PACELINE_ADMIN_TOKEN, or a configuration that has server.admin_token",
            remedy="Set the variable, or add --config FILE.yaml",
        )
    return Administration(url or address, token)


@click.group()
def routes() -> None:
    """Show, switch and explain the routes of a server that runs.

    The admin token comes from PACELINE_ADMIN_TOKEN or from the configuration, and never from a flag, which
    others on the machine could read.
    """


@routes.command(name="list")
@connected
def list_routes(url: str | None, config: Path | None, as_json: bool) -> None:
    """Show every route with its state."""
    found = _administration(url, config).ask("GET", "/admin/routes")
    if as_json:
        print_json(found)
        return
    if found["config_error"]:
        click.echo(f"the file as it is now is not in force: {found['config_error']}", err=True)
    rows = [_row(route, found["default_route"]) for route in found["routes"]]
    print_table(("ROUTE", "SPECULATION", "STATE", "ACCEPTANCE", "SPEEDUP", "CHANGED"), rows)


@routes.command(name="set")
@click.argument("name")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@connected
def set_route(
    name: str, changes: tuple[str, ...], url: str | None, config: Path | None, as_json: bool
) -> None:
    """Change keys of a route, from its next step on.

    \b
    paceline routes set chat speculation=off
    paceline routes set code drafters=[suffix,model] max_draft_length=6 draft_length=null
    """
    values = dict(_change(text) for text in changes)
    found = _administration(url, config).ask("PATCH", f"/admin/routes/{quote(name, safe='')}", values)
    _show(found, as_json)


@routes.command()
@click.argument("name")
@connected
def reset(name: str, url: str | None, config: Path | None, as_json: bool) -> None:
    """Let a route be what the configuration says again."""
    path = f"/admin/routes/{quote(name, safe='')}/overlay"
    _show(_administration(url, config).ask("DELETE", path), as_json)


@routes.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N",
              help="Latest decisions.")  # fmt: skip
@connected
def explain(name: str, limit: int, url: str | None, config: Path | None, as_json: bool) -> None:
    """Say why a route speculates, or does not, and what was decided about it."""
    server = _administration(url, config)
    path = f"/admin/routes/{quote(name, safe='')}/decisions?limit={limit}"
    decisions = server.ask("GET", path)["decisions"]
    (route,) = (one for one in server.ask("GET", "/admin/routes")["routes"] if one["name"] == name)
    if as_json:
        print_json({**route, "decisions": decisions})
        return
    _show(route, as_json=False)
    for one in decisions:
        at = datetime.datetime.fromtimestamp(one["time"]).astimezone()
        click.echo(
            f"{at:%Y-%m-%d %H:%M:%S}  {_whose(one, route)}"
            f"{one['by']}: {one['before']} -> {one['after']}: {one['sentence']}"
        )


def _whose(decision: Mapping[str, Any], route: Mapping[str, Any]) -> str:
    """Return which of several engines decided, in words; nothing where there is one."""
    for key, reports in (("replica", "replicas"), ("engine", "reports")):
        if key in decision and len(route.get(reports) or ()) > 1:
            return f"{key} {decision[key]}, "
    return ""


def _change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    try:
        if not (key and equals):
            raise ValueError
        return key, yaml.safe_load(value)
    except (ValueError, yaml.YAMLError):
        raise ConfigError(
            given=f"the change {text!r}", expected="KEY=VALUE, such as speculation=off", remedy="Write it so"
        ) from None


def _row(route: dict[str, Any], default: str | None) -> tuple[str, ...]:
    report = route["report"] or {}
    speedup = report.get("speedup") or {}
    rates = [
        f"{one['source']} {one['rate']:.2f}"
        for one in report.get("acceptance", ())
        if one["rate"] is not None
    ]
    estimate = speedup.get("estimate")
    note = "" if speedup.get("is_checked") else " (estimate)"
    return (
        route["name"] + (" (default)" if route["name"] == default else ""),
        route["in_force"]["speculation"],
        report.get("state", "-") + (f": {report['reason']}" if report.get("reason") else ""),
        ", ".join(rates) or "-",
        "-" if estimate is None else f"{estimate:.2f}x{note}",
        ", ".join(route["overlay"]) or "-",
    )


def _show(route: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(route)
        return
    report = route["report"] or {}
    fields = [("route", route["name"]), ("state", report.get("sentence", "-"))]
    fields += [(key, json.dumps(value)) for key, value in route["in_force"].items()]
    fields += [
        (f"{key} was set by", f"{entry['by']}, over {json.dumps(route['file'].get(key))} of the file")
        for key, entry in route["overlay"].items()
    ]
    print_fields(fields)
