"""Reads what a request says of its route, and writes it down where vLLM passes it on to the scheduler."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.administration.access import Caller
from paceline.administration.route_book import RouteBook
from paceline.administration.routing import ROUTE_HEADER, first_route, split_model
from paceline.config.drafter_names import resolved
from paceline.errors import InvalidParameterError
from paceline.policy.routes import RouteOverride
from paceline.vllm.bridge import ENABLED_ARGUMENT, MAX_DRAFT_LENGTH_ARGUMENT, ROUTE_ARGUMENT
from paceline.vllm.speculative import Speculative

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations")
"""Where bodies have `vllm_xargs`, by which a request reaches the scheduler with its route."""
ARGUMENTS = "vllm_xargs"


@dataclass(frozen=True, slots=True)
class Routed:
    """A request, with its route in its body."""

    body: bytes
    route: str


class RequestRouter:
    """Finds the route of requests, in the same order as Paceline's own server.

    Args:
        book: the routes.
        speculative: what vLLM drafts with.
        served: gives the names that models are called by; the first is for requests that name none.
    """

    def __init__(
        self, book: RouteBook, speculative: Speculative, served: Callable[[], Collection[str]]
    ) -> None:
        self._book = book
        self._speculative = speculative
        self._served = served

    def route(self, raw: bytes, header: str | None, caller: Caller) -> Routed | None:
        """Return a request with its route; none where its body is no object, which vLLM will say better.

        Raises:
            RequestError: the model or the route is not there, or it asks for what the route does not allow.
        """
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            return None
        if not isinstance(body, dict):
            return None
        body["model"], route = self._resolve(body.get("model"), header, caller)
        arguments = _arguments(body)
        arguments[ROUTE_ARGUMENT] = route
        arguments.update(self._override(body, route))
        body[ARGUMENTS] = arguments
        return Routed(json.dumps(body, ensure_ascii=False).encode(), route)

    def _resolve(self, model: Any, header: str | None, caller: Caller) -> tuple[str, str]:
        """Return the name by which vLLM knows the model, and the route."""
        served = self._served()
        routes = self._book.routes
        # Without a name vLLM takes its first model; other than text it refuses itself.
        given = next(iter(served)) if model is None else str(model)
        name, suffix = split_model(given, served, routes)
        return name, first_route((header, suffix, caller.route, self._book.default), routes)

    def _override(self, body: dict[str, Any], route: str) -> Mapping[str, Any]:
        if body.pop("return_speculation", None):
            raise _refused("return_speculation = true", "requests without it: vLLM keeps no record of it")
        given = body.pop("speculation", None)
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise _refused(f"speculation = {given!r:.80}", 'an object such as {"enabled": false}')
        override = RouteOverride(**{str(key): value for key, value in given.items() if value is not None})
        override.within(route, self._book.routes[route])
        self._check_drafter(override, route)
        found: dict[str, Any] = {}
        if override.enabled is not None:
            # Where a value may be text or a number, vLLM makes a number of a truth value.
            word = override.enabled
            found[ENABLED_ARGUMENT] = word if word == "auto" else int(word)
        if override.max_draft_length is not None:
            found[MAX_DRAFT_LENGTH_ARGUMENT] = override.max_draft_length
        return found

    def _check_drafter(self, override: RouteOverride, route: str) -> None:
        """Refuse what the route would allow, and vLLM was not started for."""
        most, has = self._speculative.max_draft_length, self._speculative.drafter
        if has is None and override.enabled in (True, "auto"):
            raise _refused(f"speculation.enabled = {override.enabled!r}", "false: vLLM runs without drafts")
        if override.max_draft_length is not None and override.max_draft_length > most:
            raise _refused(
                f"speculation.max_draft_length = {override.max_draft_length}",
                f"at most {most}, for which vLLM was started",
            )
        if override.drafter is not None:
            known = self._book.routes[route].drafters
            if resolved(override.drafter, known).split(":")[0] != has:
                raise _refused(
                    f"speculation.drafter = {override.drafter!r}", f"{has!r}, which vLLM drafts with"
                )


def _arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    given = body.get(ARGUMENTS)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _refused(f"{ARGUMENTS} = {given!r:.80}", "an object")
    ours = sorted(set(given) & {ROUTE_ARGUMENT, ENABLED_ARGUMENT, MAX_DRAFT_LENGTH_ARGUMENT})
    if ours:
        raise _refused(
            f"{ARGUMENTS}.{ours[0]}",
            f"a route in {ROUTE_HEADER} or as MODEL:ROUTE, and 'speculation' beside it",
        )
    return dict(given)


def check_no_route(header: str | None, path: str) -> None:
    """Refuse a route on a path whose requests have none.

    Raises:
        InvalidParameterError: there is one.
    """
    if header is not None:
        raise _refused(f"{ROUTE_HEADER} with {path:.80}", "it with one of " + ", ".join(PATHS))


def _refused(given: str, expected: str) -> InvalidParameterError:
    return InvalidParameterError(given, expected, "Change it, or leave it out")
