"""The two kinds of completions as objects and as streams; they differ in names and in little else."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.administration.http_errors import error_body
from paceline.errors import PacelineError
from paceline.records import GenerationResult, PositionLogprobs, StreamChunk
from paceline.server.answers import Pieces, chat_logprobs, completion_logprobs, usage
from paceline.server.calls import Answers
from paceline.server.service import Service
from paceline.server.sse import DONE, TextEvents, event
from paceline.server.tools import ToolText, ToolUse

TOOL_CALLS = "tool_calls"
"""Why an answer ended that calls tools."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What of an answer is to be shown."""

    includes_usage: bool = False
    """In a stream: a last chunk with the token counts."""
    shows_speculation: bool = False


@dataclass(slots=True)
class _Streamed:
    """One choice of a stream."""

    place: int
    events: TextEvents
    pieces: Pieces | None
    """Where its text is shown token by token."""
    length: int = 0
    """Characters of its text that have come."""


class Form(ABC):
    """How answers of one call look.

    Args:
        service: what answers.
        answers: the call's.
        model: as the request named it.
        wishes: what is to be shown.
    """

    whole_object: str
    chunk_object: str

    def __init__(self, service: Service, answers: Answers, model: str, wishes: Wishes) -> None:
        self._service = service
        self._tokenizer = service.tokenizer
        self._answers = answers
        self._num_choices = answers.call.sampling.n
        self._model = model
        self._wishes = wishes
        self._created = int(time.time())

    @property
    def headers(self) -> dict[str, str]:
        """Of the response."""
        return {"X-Request-Id": self._answers.call.id, "X-Paceline-Route": self._answers.call.route}

    async def whole(self) -> dict[str, Any]:
        """Wait for the answers and return them as one object."""
        async with self._answers:
            results = await self._answers.whole()
            self._service.capture_answers(self._answers)
        choices = []
        for place, result in enumerate(results):
            choice = {
                "index": place,
                **self._message(result),
                "logprobs": self._logprobs(result.logprobs, 0),
                "seed": result.seed,
            }
            if self._wishes.shows_speculation:
                choice["speculation"] = await self._service.speculation_record(result)
            choices.append(choice)
        return {**self._head(self.whole_object), "choices": choices, "usage": usage(results)}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events, all that are ready at a time.

        An answer that fails ends them with an event that has the error.
        """
        choices = [self._streamed(place) for place in range(len(self._answers.streams) * self._num_choices)]
        tail = b""
        try:
            first = [self._choice(choice.place, delta) for choice in choices for delta in self._first()]
            if first:
                yield b"".join(self._event([choice]) for choice in first)
            while arrived := await self._answers.arrived():
                events = []
                for prompt, chunk in arrived:
                    choice = choices[prompt * self._num_choices + chunk.index]
                    if chunk.token_ids or chunk.text:
                        events.append(self._text_event(choice, chunk))
                    if chunk.result is not None:
                        events.append(self._event([await self._last(choice.place, chunk.result)]))
                if len(self._answers.results) < len(choices):
                    yield b"".join(events)
                else:
                    tail = b"".join(events)
            self._service.capture_answers(self._answers)
            if self._wishes.includes_usage:
                tail += self._usage_event()
        except PacelineError as error:
            tail += event(error_body(error))
        yield tail + DONE

    def _streamed(self, place: int) -> _Streamed:
        pieces = Pieces(self._tokenizer) if self._wishes.shows_speculation else None
        return _Streamed(place, TextEvents(self._event([self._choice(place, self._content(""))])), pieces)

    def _text_event(self, choice: _Streamed, chunk: StreamChunk) -> bytes:
        text = self._shown(choice.place, chunk.text)
        offset = choice.length
        choice.length += len(chunk.text)
        if chunk.logprobs is None and choice.pieces is None:
            return choice.events.of(text)
        extra: dict[str, Any] = {"logprobs": self._logprobs(chunk.logprobs, offset)}
        if choice.pieces is not None:
            extra["speculation"] = choice.pieces.of(chunk)
        return self._event([self._choice(choice.place, self._content(text), **extra)])

    def _usage_event(self) -> bytes:
        return event({**self._head(self.chunk_object), "choices": [], "usage": usage(self._answers.results)})

    async def _last(self, place: int, result: GenerationResult) -> dict[str, Any]:
        extra: dict[str, Any] = {"seed": result.seed}
        if self._wishes.shows_speculation:
            extra["speculation"] = await self._service.speculation_record(result)
        return {**self._choice(place, {}), **self._end(place, result), **extra}

    def _event(self, choices: list[dict[str, Any]]) -> bytes:
        document = {**self._head(self.chunk_object), "choices": choices}
        if self._wishes.includes_usage:
            document["usage"] = None
        return event(document)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._answers.call.id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": self._service.fingerprint,
        }

    def _choice(self, place: int, content: dict[str, Any], **extra: Any) -> dict[str, Any]:
        return {"index": place, **content, "finish_reason": None, "logprobs": None, **extra}

    @abstractmethod
    def _message(self, result: GenerationResult) -> dict[str, Any]:
        """Return the part of a whole choice that holds its text, and why it ended."""

    @abstractmethod
    def _first(self) -> Sequence[dict[str, Any]]:
        """Return what a stream begins with for each choice."""

    def _shown(self, place: int, text: str) -> str:
        """Return what of a choice's new text is shown as text now."""
        return text

    @abstractmethod
    def _content(self, text: str) -> dict[str, Any]:
        """Return the part of a streamed choice that holds new text."""

    @abstractmethod
    def _end(self, place: int, result: GenerationResult) -> dict[str, Any]:
        """Return the part of a streamed choice that ends it, and why it ended."""

    @abstractmethod
    def _logprobs(self, positions: Sequence[PositionLogprobs] | None, offset: int) -> dict[str, Any] | None:
        """Return log-probabilities; none where none were asked for."""


class ChatForm(Form):
    """`/v1/chat/completions`.

    Args:
        tools: what the request says about tools; none where it has none.
    """

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self, service: Service, answers: Answers, model: str, wishes: Wishes, tools: ToolUse | None = None
    ) -> None:
        super().__init__(service, answers, model, wishes)
        self._tools = tools
        self._texts: dict[int, ToolText] = {}

    def _message(self, result: GenerationResult) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": result.text, "refusal": None}
        reason = result.finish_reason.value
        if self._tools is not None:
            text = ToolText(self._tools)
            said = text.push(result.text)
            rest, calls = text.finish(f"{result.id}_{result.index}")
            if calls:
                for call in calls:
                    del call["index"]
                message |= {"content": said.strip() or None, "tool_calls": calls}
                reason = TOOL_CALLS
            else:
                message["content"] = said + rest
        return {"message": message, "finish_reason": reason}

    def _first(self) -> Sequence[dict[str, Any]]:
        return [{"delta": {"role": "assistant", "content": ""}}]

    def _shown(self, place: int, text: str) -> str:
        if self._tools is None:
            return text
        return self._texts.setdefault(place, ToolText(self._tools)).push(text)

    def _content(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def _end(self, place: int, result: GenerationResult) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        reason = result.finish_reason.value
        if place in self._texts:
            rest, calls = self._texts[place].finish(f"{result.id}_{result.index}")
            if calls:
                delta, reason = {"tool_calls": calls}, TOOL_CALLS
            elif rest:
                delta = {"content": rest}
        return {"delta": delta, "finish_reason": reason}

    def _logprobs(self, positions: Sequence[PositionLogprobs] | None, offset: int) -> dict[str, Any] | None:
        return None if positions is None else chat_logprobs(self._tokenizer, positions)


class CompletionForm(Form):
    """`/v1/completions`."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _message(self, result: GenerationResult) -> dict[str, Any]:
        return {"text": result.text, "finish_reason": result.finish_reason.value}

    def _first(self) -> Sequence[dict[str, Any]]:
        return []

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _end(self, place: int, result: GenerationResult) -> dict[str, Any]:
        return {"text": "", "finish_reason": result.finish_reason.value}

    def _logprobs(self, positions: Sequence[PositionLogprobs] | None, offset: int) -> dict[str, Any] | None:
        return None if positions is None else completion_logprobs(self._tokenizer, positions, offset)
