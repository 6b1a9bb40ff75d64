"""Bodies of requests, in the form of OpenAI's API (https://platform.openai.com/docs/api-reference).

What is not in a schema is refused by name, so that nothing asked for is dropped. Keys that are null count as
not given, since client libraries send them so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

HARMLESS = ("user", "metadata", "store", "safety_identifier", "prompt_cache_key")
"""Taken and not used: they label a request for whoever stores it, and change no answer. Nothing is stored
here."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_given(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {key: value for key, value in values.items() if value is not None}


class StreamOptions(_Body):
    """What a stream has beside its text."""

    include_usage: bool = False
    """A last chunk with the token counts."""
    include_obfuscation: bool = False
    """Random padding of chunks; only false is served."""


class SpeculationOptions(_Body):
    """What this request asks of its route."""

    enabled: bool | Literal["auto"] | None = None
    max_draft_length: int | None = Field(None, ge=1, le=64)
    drafter: str | None = None


class JsonSchemaFormat(_Body):
    """A JSON schema with its labels."""

    name: str | None = None
    description: str | None = None
    json_schema: Mapping[str, Any] = Field(alias="schema")
    strict: bool = True
    """Answers are held to the schema whether this is true or false."""


class ResponseFormat(_Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class GenerationBody(_Body):
    """What both kinds of completions have."""

    model: str
    """The served model, or `model:route`."""
    temperature: float = Field(1.0, ge=0.0, le=2.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] = Field(default_factory=list)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    logit_bias: Mapping[str, float] = Field(default_factory=dict)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)

    top_k: int = Field(0, ge=0, lt=2**31)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(1.0, gt=0.0)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    stop_token_ids: list[int] = Field(default_factory=list)
    speculation: SpeculationOptions | None = None
    return_speculation: bool = False
    """The answer says what was drafted and accepted; chunks of a stream say it of their tokens."""

    user: str | None = None
    metadata: Mapping[str, Any] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None


class TextPart(_Body):
    """A part of a message that is text; others are refused."""

    type: Literal["text"]
    text: str


class CalledFunction(_Body):
    """A function that was called, with arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(_Body):
    """A call of an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(_Body):
    """One message. Content is text, or a list of parts that are text."""

    role: str
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    """Results follow their calls in order; templates do not show ids."""


class ToolFunction(_Body):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """Arguments are held to the schema where a call is required, whatever this says."""


class Tool(_Body):
    """A tool."""

    type: Literal["function"]
    function: ToolFunction


class ToolName(_Body):
    """A function by name."""

    name: str


class NamedTool(_Body):
    """The one tool that has to be called."""

    type: Literal["function"] = "function"
    function: ToolName


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: list[Tool] = Field(default_factory=list, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: Literal[False] = False
    """Only false is served."""
    best_of: int | None = Field(None, ge=1)
    """Only the value of n is served."""
    suffix: Literal[""] = ""
    """Only the empty text is served."""
    response_format: ResponseFormat | None = None
