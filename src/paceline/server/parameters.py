"""From bodies to the engine's own parameters; what cannot be served is refused here, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidParameterError
from paceline.parameters import StructuredOutput
from paceline.policy.routes import RouteOverride
from paceline.records import SamplingParams
from paceline.server.schemas import ChatBody, CompletionBody, GenerationBody, ResponseFormat
from paceline.server.tools import ToolUse, message_calls

MAX_PROMPTS = 128
DEVELOPER, SYSTEM = "developer", "system"


def chat_sampling(body: ChatBody, tools: ToolUse | None) -> SamplingParams:
    """Return how the tokens of a chat's answer are chosen."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise refused("max_tokens beside max_completion_tokens", "one of them", "Leave max_tokens out")
    if body.top_logprobs is not None and not body.logprobs:
        raise refused(
            "top_logprobs without logprobs", "logprobs: true beside it", "Set logprobs, or leave it out"
        )
    return SamplingParams(
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        structured_output=tools.form if tools and tools.form else _form(body.response_format),
        **_common(body),
    )


def completion_sampling(body: CompletionBody) -> SamplingParams:
    """Return how the tokens of a plain completion are chosen."""
    if body.best_of is not None and body.best_of != body.n:
        raise refused(
            f"best_of = {body.best_of} beside n = {body.n}",
            "the value of n: answers are not ranked here",
            "Leave best_of out",
        )
    return SamplingParams(
        max_tokens=body.max_tokens,
        logprobs=body.logprobs,
        structured_output=_form(body.response_format),
        **_common(body),
    )


def check_stream_options(body: GenerationBody) -> None:
    """Refuse options of a stream that is none, and padding."""
    if body.stream_options is None:
        return
    if not body.stream:
        raise refused("stream_options without stream", "stream: true beside it", "Leave stream_options out")
    if body.stream_options.include_obfuscation:
        raise refused(
            "stream_options.include_obfuscation = true", "false: chunks are not padded", "Leave it out"
        )


def override(body: GenerationBody) -> RouteOverride:
    """Return what a request asks of its route."""
    given = body.speculation
    return RouteOverride() if given is None else RouteOverride(**given.model_dump())


def messages_of(body: ChatBody) -> list[dict[str, Any]]:
    """Return messages as chat templates know them: content as text, `developer` as `system`."""
    found = []
    for message in body.messages:
        content = message.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        role = SYSTEM if message.role == DEVELOPER else message.role
        found.append({"role": role, "content": content, **message_calls(message)})
    return found


def prompts_of(body: CompletionBody) -> list[str | list[int]]:
    """Return the prompts of a plain completion, one or several."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise refused("an empty list of prompts", "at least one prompt", "Give a text or token ids")
    if isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise refused(f"{len(prompt)} prompts", f"at most {MAX_PROMPTS}", "Send them in several requests")
    return list(prompt)


def refused(given: str, expected: str, remedy: str) -> InvalidParameterError:
    """Return the error for parameters that do not go together."""
    return InvalidParameterError(given, expected, remedy)


def _common(body: GenerationBody) -> dict[str, Any]:
    return {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "n": body.n,
        "seed": body.seed,
        "stop": body.stop if isinstance(body.stop, str) else tuple(body.stop),
        "stop_token_ids": tuple(body.stop_token_ids),
        "ignore_eos": body.ignore_eos,
        "min_tokens": body.min_tokens,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty,
        "logit_bias": _token_bias(body.logit_bias),
    }


def _token_bias(given: Mapping[str, float]) -> dict[int, float]:
    if not all(key.isascii() and key.isdigit() for key in given):
        raise refused(
            f"logit_bias with the keys {', '.join(given)!r:.80}", "token ids as keys", "Change the keys"
        )
    return {int(key): value for key, value in given.items()}


def _form(given: ResponseFormat | None) -> StructuredOutput | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return StructuredOutput(json_object=True)
    if given.json_schema is None:
        raise refused(
            "response_format of type json_schema without json_schema",
            'a schema: {"json_schema": {"name": ..., "schema": {...}}}',
            "Add it, or take the type json_object",
        )
    return StructuredOutput(json_schema=given.json_schema.json_schema)
