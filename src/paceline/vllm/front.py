"""One request on its way to vLLM: who asks, on which route, with which limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Iterator

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.administration.access import Caller
from paceline.administration.http_errors import error_body, error_response
from paceline.administration.routing import ROUTE_HEADER
from paceline.errors import BusyError, DeadlineError, PacelineError, ShutDownError
from paceline.vllm.model_list import ModelList
from paceline.vllm.request_body import PATHS, RequestRouter, check_no_route
from paceline.vllm.served import VllmService

OPEN_PATHS = ("/health", "/ping", "/version", "/load", "/metrics")
"""What is answered without a key."""
MODELS_PATH = "/v1/models"


class Front:
    """ASGI application.

    Args:
        app: vLLM's.
        admin: what answers the administration.
        service: routes, callers and settings.
        served: gives the names that vLLM's models are called by.
        num_seqs: requests that vLLM runs at once.
    """

    def __init__(
        self,
        app: ASGIApp,
        admin: ASGIApp,
        service: VllmService,
        served: Callable[[], Collection[str]],
        num_seqs: int,
    ) -> None:
        self._app = app
        self._admin = admin
        self._service = service
        self._router = RequestRouter(service.book, service.speculative, served)
        self._models = ModelList(app, lambda: (next(iter(served())), tuple(service.book.routes)))
        server = service.settings.server
        self._timeout_s = server.request_timeout_s
        # vLLM queues without end, unless the configuration says otherwise.
        self._most = num_seqs + server.max_queued if "max_queued" in server.model_fields_set else None
        self._num_open = 0
        self._deadlines: set[asyncio.Timeout] = set()
        self._is_closed = self._has_ended = False

    def refuse(self) -> None:
        """Take no more requests: vLLM's engine finishes those it has. Safe in any thread."""
        self._is_closed = True

    def end(self) -> None:
        """End the answers under way: vLLM's engine has stopped."""
        self._is_closed = self._has_ended = True
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let vLLM answer."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and (path == "/status" or path.startswith("/admin/")):
            await self._admin(scope, receive, send)
        elif path in OPEN_PATHS or scope.get("method") == "OPTIONS":
            await self._app(scope, receive, send)
        else:
            await self._guarded(path, scope, receive, send)

    async def _guarded(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            caller = self._service.gate.caller(headers.get("authorization"))
            if scope["type"] == "http" and scope["method"] == "POST" and path in PATHS:
                await self._generate(caller, headers, scope, receive, send)
                return
            check_no_route(headers.get(ROUTE_HEADER), path)
        except PacelineError as error:
            await _refuse(error, scope, receive, send)
            return
        is_list = scope["type"] == "http" and path == MODELS_PATH
        await (self._models if is_list else self._app)(scope, receive, send)

    async def _generate(
        self, caller: Caller, headers: Headers, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = await _whole(receive)
        if body is None:
            return
        routed = self._router.route(body, headers.get(ROUTE_HEADER), caller)
        if routed is None:
            await self._app(scope, _Replay(body, receive), send)
            return
        self._take_place()
        try:
            answer = _Answer(send, routed.route)
            try:
                async with asyncio.timeout(self._timeout_s) as deadline:
                    with self._endable(deadline):
                        await caller.take_turn()
                        try:
                            self._check_open()
                            inner = _with_length(scope, len(routed.body))
                            await self._app(inner, _Replay(routed.body, receive), answer.send)
                        finally:
                            caller.end_turn()
            except TimeoutError:
                if not deadline.expired():
                    raise
                error = _stopping() if self._has_ended else _late(self._timeout_s)
                await answer.end_early(error, scope, receive)
        finally:
            self._num_open -= 1

    @contextlib.contextmanager
    def _endable(self, deadline: asyncio.Timeout) -> Iterator[None]:
        self._deadlines.add(deadline)
        try:
            yield
        finally:
            self._deadlines.discard(deadline)

    def _take_place(self) -> None:
        self._check_open()
        if self._most is not None and self._num_open >= self._most:
            raise BusyError(
                given=f"a request beside {self._num_open} that run or wait",
                expected=f"at most {self._most}",
                remedy="Try again later",
            )
        self._num_open += 1

    def _check_open(self) -> None:
        if self._is_closed:
            raise _stopping()


class _Answer:
    """A response on its way out, with its route in a header."""

    def __init__(self, send: Send, route: str) -> None:
        self._send = send
        self._route = route
        self._has_begun = self._is_stream = False

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self._has_begun = True
            headers = MutableHeaders(scope=message)
            self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
            headers[ROUTE_HEADER] = self._route
        await self._send(message)

    async def end_early(self, error: PacelineError, scope: Scope, receive: Receive) -> None:
        """End it: as a whole where nothing was sent yet, else by an event of its stream. A whole answer that
        is on its way already stays as it is."""
        if not self._has_begun:
            await error_response(error)(scope, receive, self._send)
            return
        if not self._is_stream:
            return
        event = f"data: {json.dumps(error_body(error))}\n\ndata: [DONE]\n\n"
        await self._send({"type": "http.response.body", "body": event.encode(), "more_body": False})


class _Replay:
    """Gives a body that was read already, and then what comes after it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        """Return the next message."""
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _whole(receive: Receive) -> bytes | None:
    """Return a body; none where the client has gone before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _with_length(scope: Scope, length: int) -> Scope:
    """Return the scope of a request whose body has another length; what vLLM adds to it is seen in both."""
    kept = [
        (key, value)
        for key, value in scope["headers"]
        if key not in (b"content-length", b"transfer-encoding")
    ]
    scope["headers"] = [*kept, (b"content-length", str(length).encode())]
    return scope


async def _refuse(error: PacelineError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:100]})
        return
    await error_response(error)(scope, receive, send)


def _late(timeout_s: float) -> DeadlineError:
    return DeadlineError(
        given=f"a request that took longer than {timeout_s:g} s",
        expected="an answer by then",
        remedy="Ask for fewer tokens, or raise server.request_timeout_s",
    )


def _stopping() -> ShutDownError:
    return ShutDownError(
        given="a request to a server that is shutting down",
        expected="one that is answered before it stops",
        remedy="Send it again once the server is back; server.shutdown_timeout_s is for answers that run",
    )
