"""OpenAI's endpoints: models, completions, chat completions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from paceline.administration.access import Caller
from paceline.administration.routing import ROUTE_HEADER
from paceline.errors import UnknownModelError
from paceline.server import parameters
from paceline.server.calls import Answers, Call, new_id
from paceline.server.completions import ChatForm, CompletionForm, Form, Wishes
from paceline.server.schemas import ChatBody, CompletionBody, GenerationBody
from paceline.server.service import Service
from paceline.server.sse import CLIENT_GONE, EventStream, whole_unless_gone
from paceline.server.tools import tool_use

router = APIRouter(prefix="/v1", tags=["openai"])


def service_of(request: Request) -> Service:
    """Return the service that the app was made with."""
    service: Service = request.app.state.service
    return service


async def caller_of(request: Request) -> Caller:
    """Return who asks; see `Gate.caller`. Async, since FastAPI would run it in a thread of its own else."""
    return service_of(request).gate.caller(request.headers.get("authorization"))


CallerOf = Annotated[Caller, Depends(caller_of)]


@router.get("/models")
async def list_models(request: Request, caller: CallerOf) -> JSONResponse:
    """List the served model, alone and with each route."""
    service = service_of(request)
    return JSONResponse({"object": "list", "data": [_model(name) for name in _names(service)]})


@router.get("/models/{name}")
async def show_model(request: Request, caller: CallerOf, name: str) -> JSONResponse:
    """Show one of them."""
    names = _names(service_of(request))
    if name not in names:
        raise UnknownModelError(
            given=f"model {name!r:.120}", expected="one of " + ", ".join(names), remedy="Correct the name"
        )
    return JSONResponse(_model(name))


@router.post("/chat/completions")
async def chat_completions(request: Request, caller: CallerOf, body: ChatBody) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    tools = tool_use(body)
    sampling = parameters.chat_sampling(body, tools)
    route = service.route(body.model, request.headers.get(ROUTE_HEADER), caller)
    messages = parameters.messages_of(body)
    shown = None if tools is None else tools.shown
    prompt = await service.encode_chat(messages, shown)
    sources = service.sources(route, [{"messages": messages, **({"tools": shown} if shown else {})}])
    call = Call(new_id("chatcmpl"), caller, route, [prompt], sampling, parameters.override(body), sources)
    return await _answer(request, call, body, functools.partial(ChatForm, tools=tools))


@router.post("/completions")
async def completions(request: Request, caller: CallerOf, body: CompletionBody) -> Response:
    """Continue a text, or several."""
    service = service_of(request)
    sampling = parameters.completion_sampling(body)
    route = service.route(body.model, request.headers.get(ROUTE_HEADER), caller)
    given = parameters.prompts_of(body)
    prompts: Sequence[Sequence[int]] = [await service.encode(prompt) for prompt in given]
    sources = service.sources(route, [{"prompt": one} if isinstance(one, str) else None for one in given])
    call = Call(new_id("cmpl"), caller, route, prompts, sampling, parameters.override(body), sources)
    return await _answer(request, call, body, CompletionForm)


async def _answer(
    request: Request,
    call: Call,
    body: GenerationBody,
    form_type: Callable[[Service, Answers, str, Wishes], Form],
) -> Response:
    parameters.check_stream_options(body)
    service = service_of(request)
    wishes = Wishes(
        includes_usage=body.stream_options is not None and body.stream_options.include_usage,
        shows_speculation=body.return_speculation,
    )
    # Nobody waits for a turn whose client is gone.
    answers = await whole_unless_gone(request, service.open(call))
    if answers is None:
        return Response(status_code=CLIENT_GONE)
    form = form_type(service, answers, body.model, wishes)
    if body.stream:
        return EventStream(form.stream(), answers.close, form.headers)
    found: dict[str, Any] | None = await whole_unless_gone(request, form.whole())
    if found is None:
        return Response(status_code=CLIENT_GONE)
    return JSONResponse(found, headers=form.headers)


def _names(service: Service) -> list[str]:
    return [service.model_name, *(f"{service.model_name}:{route}" for route in service.book.routes)]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "paceline"}
