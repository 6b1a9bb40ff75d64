"""The Python API: one engine, driven by whoever asks it for answers."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from types import TracebackType
from typing import Any, Self

from paceline.config.engine import EngineSettings
from paceline.engine.loading import LoadedEngine, load_engine
from paceline.errors import ConfigError, EmptyPromptError, InvalidParameterError
from paceline.models.chat_template import require_chat_template
from paceline.records import (
    GenerationResult,
    Request,
    SamplingParams,
    SpeculationParams,
    StreamChunk,
    draw_seed,
)

Prompt = str | Sequence[int]
"""Text, or token ids."""
Messages = Sequence[Mapping[str, Any]]
"""A conversation in the form of OpenAI's chat API: [{"role": ..., "content": ...}, ...]."""


class LLM:
    """A target model, and whatever speculates for it, in this process.

    Args:
        target: preset name, GGUF or safetensors file, or folder.
        draft: the same for the draft model; none decodes plainly unless `drafter="suffix"`.
        settings: any further field of `paceline.config.engine.EngineSettings`.

    Raises:
        ConfigError: a setting is unknown or out of range.
        ModelError, DownloadError: a model's files cannot be had or used.

    Not thread-safe. Use it as a context manager, or call `close`.
    """

    def __init__(self, target: str, draft: str | None = None, **settings: Any) -> None:
        self._start(EngineSettings(target=str(target), draft=draft and str(draft), **settings))

    @classmethod
    def from_settings(cls, settings: EngineSettings) -> Self:
        """Return an LLM for settings that were checked before."""
        llm = cls.__new__(cls)
        llm._start(settings)
        return llm

    def _start(self, settings: EngineSettings) -> None:
        self._attach(load_engine(settings), settings)

    def _attach(self, loaded: LoadedEngine, settings: EngineSettings) -> None:
        self._loaded: LoadedEngine | None = loaded
        self.settings = settings
        self._numbers = itertools.count()
        self._inbox: dict[str, deque[StreamChunk]] = {}

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Drop the models and their memory; requests that still run are dropped with them."""
        self._loaded = None
        self._inbox.clear()

    @property
    def loaded(self) -> LoadedEngine:
        """The engine and its tokenizer."""
        if self._loaded is None:
            raise ConfigError(
                given="a closed LLM", expected="an open one", remedy="Make a new LLM, or use it inside `with`"
            )
        return self._loaded

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
    ) -> list[GenerationResult]:
        """Complete raw prompts, all in one batch.

        Args:
            prompts: one prompt or several; text is tokenised with the model's own BOS rule.
            params: how tokens are chosen; the default is greedy to the end of the context.
            speculation: overrides the engine's default.

        Returns:
            One result for each prompt, in order. A sequence that could not go on has the finish reason
            "error" and carries the error; the others are not touched by it.

        Raises:
            RequestError: a prompt or parameter is wrong; nothing has run then.
        """
        many = _as_prompts(prompts)
        return self._run([self.encode(prompt) for prompt in many], params, speculation)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
    ) -> list[GenerationResult]:
        """Answer one conversation or several, as `generate` does; needs a model with a chat template."""
        many = messages if _is_batch(messages) else [messages]
        return self._run([self.encode_chat(one) for one in many], params, speculation)  # type: ignore[arg-type]

    def stream(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
    ) -> Iterator[StreamChunk]:
        """Yield one answer piece by piece; the last chunk carries the whole result.

        Leaving the loop early aborts the request and frees its memory.
        """
        is_chat = not isinstance(prompt, str) and _is_conversation(prompt)
        token_ids = self.encode_chat(prompt) if is_chat else self.encode(prompt)  # type: ignore[arg-type]
        return self.chunks(self.submit(token_ids, params, speculation=speculation))

    def encode(self, prompt: Prompt) -> list[int]:
        """Return a raw prompt's token ids, with the BOS token if the model wants one."""
        if isinstance(prompt, str):
            return self.loaded.tokenizer.encode(prompt, add_special=True)
        return _token_ids(prompt)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return a conversation's token ids, rendered with the model's chat template."""
        template = require_chat_template(self.loaded.chat_template, self.loaded.target_name)
        return template.encode(messages)

    def submit(
        self,
        token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
        route: str | None = None,
    ) -> str:
        """Queue one request and return its id; `chunks` or `run` then drive the engine."""
        params = SamplingParams() if params is None else params
        speculation = self.settings.speculation_params if speculation is None else speculation
        _check_type("params", params, SamplingParams)
        _check_type("speculation", speculation, SpeculationParams)
        if speculation.enabled and speculation.drafter is None:
            speculation = speculation.model_copy(update={"drafter": self.settings.effective_drafter})
        request = Request(
            id=request_id if request_id is not None else f"request-{next(self._numbers)}",
            prompt_token_ids=tuple(_token_ids(token_ids)),
            sampling=params,
            speculation=speculation,
            seed=draw_seed() if params.seed is None else params.seed % 2**64,
            route=route,
        )
        self.loaded.engine.submit(request)
        self._inbox[request.id] = deque()
        return request.id

    def chunks(self, request_id: str) -> Iterator[StreamChunk]:
        """Yield the chunks of one submitted request, stepping the engine for all of them.

        Dropping the iterator, begun or not, aborts the request.

        Raises:
            InvalidParameterError: no request of that id waits to be read, or `run` took its chunks meanwhile.
        """
        if request_id not in self._inbox:
            raise _not_waiting(request_id)
        chunks = self._chunks(request_id)
        next(chunks)  # a generator that never began would not notice that it is dropped
        return chunks

    def _chunks(self, request_id: str) -> Iterator[StreamChunk]:
        inbox = self._inbox[request_id]
        try:
            yield StreamChunk(request_id, "")  # taken by `chunks`
            while True:
                while not inbox:
                    self._pump(request_id)
                chunk = inbox.popleft()
                yield chunk
                if chunk.is_last:
                    return
        finally:
            if self._inbox.pop(request_id, None) is not None and self._loaded is not None:
                self._loaded.engine.abort(request_id, is_reported=False)

    def run(self) -> Iterator[StreamChunk]:
        """Step until every submitted request has ended, yielding all chunks as they come."""
        while self.loaded.engine.has_work:
            for chunk in self.loaded.engine.step():
                if chunk.is_last:
                    self._inbox.pop(chunk.request_id, None)
                yield chunk

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None,
        speculation: SpeculationParams | None,
    ) -> list[GenerationResult]:
        request_ids: list[str] = []
        try:
            for token_ids in prompts:
                request_ids.append(self.submit(token_ids, params, speculation=speculation))
            return [_last(self.chunks(request_id)) for request_id in request_ids]
        except BaseException:
            self._abort(request_ids)
            raise

    def _abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._inbox.pop(request_id, None)
            self.loaded.engine.abort(request_id, is_reported=False)

    def _pump(self, request_id: str) -> None:
        engine = self.loaded.engine
        if request_id not in self._inbox:
            raise _not_waiting(request_id)
        for chunk in engine.step():
            if chunk.request_id in self._inbox:
                self._inbox[chunk.request_id].append(chunk)


def _last(chunks: Iterator[StreamChunk]) -> GenerationResult:
    for chunk in chunks:
        if chunk.result is not None:
            return chunk.result
    raise AssertionError("a stream ended without its last chunk")


def _check_type(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise InvalidParameterError(
            given=f"{name} of type {type(value).__name__}",
            expected=f"a {expected.__name__}",
            remedy=f"Pass {name}={expected.__name__}(...)",
        )


def _is_conversation(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and isinstance(value[0], Mapping)


def _is_batch(value: object) -> bool:
    """Whether these are several conversations; one is a list of mappings."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(item, Sequence) and not isinstance(item, str) for item in value)
    )


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Tell one prompt from a list of prompts; token ids are a prompt, not a list of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | Mapping) or not isinstance(prompts, Iterable):
        raise _no_prompt(prompts)
    many: list[Any] = list(prompts)
    if not many:
        raise EmptyPromptError(
            given="an empty list of prompts", expected="at least one prompt", remedy="Pass text or token ids"
        )
    return [many] if all(isinstance(item, Integral) for item in many) else many


def _token_ids(prompt: object) -> list[int]:
    """Return token ids as plain integers; NumPy's are fine."""
    if isinstance(prompt, str | bytes | Mapping) or not isinstance(prompt, Iterable):
        raise _no_prompt(prompt)
    token_ids = list(prompt)
    if not all(isinstance(token_id, Integral) for token_id in token_ids):
        raise _no_prompt(prompt)
    return [int(token_id) for token_id in token_ids]


def _no_prompt(value: object) -> InvalidParameterError:
    return InvalidParameterError(
        given=f"a prompt of type {type(value).__name__}: {value!r:.60}",
        expected="text or a list of token ids",
        remedy="Pass strings, or lists of token ids",
    )


def _not_waiting(request_id: str) -> InvalidParameterError:
    return InvalidParameterError(
        given=f"request id {request_id!r}, of which no chunks wait to be read",
        expected="the id of a request that was submitted and not yet read to its end",
        remedy="Submit it first, and read it in one place",
    )
