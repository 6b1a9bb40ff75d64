"""The Python API: one engine, driven by whoever asks it for answers."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from paceline.config.engine import EngineSettings
from paceline.engine.calibration import Progress
from paceline.engine.loading import LoadedEngine, load_engine
from paceline.engine.requests import Messages, Prompt, RequestMaker, as_prompts, is_batch, is_conversation
from paceline.errors import ConfigError, InvalidParameterError
from paceline.models.pages import release_free_memory
from paceline.records import GenerationResult, SamplingParams, SpeculationParams, StreamChunk


@dataclass(slots=True)
class _Inbox:
    """Chunks of one request that nobody has read yet."""

    num_running: int
    """Choices that have not ended."""
    chunks: deque[StreamChunk] = field(default_factory=deque)


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
    def from_settings(
        cls, settings: EngineSettings, on_progress: Progress = lambda share, text: None
    ) -> Self:
        """Return an LLM for settings that were checked before.

        Args:
            settings: what to load.
            on_progress: told (share, of what) while step costs are measured, if they are.
        """
        llm = cls.__new__(cls)
        llm._attach(load_engine(settings, on_progress), settings)
        return llm

    def _start(self, settings: EngineSettings) -> None:
        self._attach(load_engine(settings), settings)

    def _attach(self, loaded: LoadedEngine, settings: EngineSettings) -> None:
        self._loaded: LoadedEngine | None = loaded
        self.settings = settings
        self._requests: RequestMaker | None = RequestMaker(loaded, settings)
        self._inbox: dict[str, _Inbox] = {}

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
        if self._loaded is not None:
            self._loaded.engine.observers.tell_end()
        self._loaded = self._requests = None
        self._inbox.clear()
        gc.collect()  # an engine and its parts know each other
        release_free_memory()

    def _check_open(self) -> None:
        if self._loaded is None:
            raise ConfigError(
                given="a closed LLM", expected="an open one", remedy="Make a new LLM, or use it inside `with`"
            )

    @property
    def loaded(self) -> LoadedEngine:
        """The engine and its tokenizer."""
        self._check_open()
        assert self._loaded is not None
        return self._loaded

    @property
    def _maker(self) -> RequestMaker:
        self._check_open()
        assert self._requests is not None
        return self._requests

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
        route: str | None = None,
        tenant: str | None = None,
    ) -> list[GenerationResult]:
        """Complete raw prompts, all in one batch.

        Args:
            prompts: one prompt or several; text is tokenised with the model's own BOS rule.
            params: how tokens are chosen; the default is greedy to the end of the context.
            speculation: overrides the engine's default.
            route, tenant: what kind of traffic this is, and who asks; drafts come from earlier answers of the
                same two alone, unless `answer_sharing` says otherwise.

        Returns:
            For each prompt, in order, its n results. A sequence that could not go on has the finish reason
            "error" and carries the error; the others are not touched by it.

        Raises:
            RequestError: a prompt or parameter is wrong; nothing has run then.
        """
        many = as_prompts(prompts)
        names = {"route": route, "tenant": tenant}
        return self._run([self.encode(prompt) for prompt in many], params, speculation, names)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
        route: str | None = None,
        tenant: str | None = None,
    ) -> list[GenerationResult]:
        """Answer one conversation or several, as `generate` does; needs a model with a chat template."""
        many = messages if is_batch(messages) else [messages]
        prompts = [self.encode_chat(one) for one in many]  # type: ignore[arg-type]
        return self._run(prompts, params, speculation, {"route": route, "tenant": tenant})

    def stream(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
        route: str | None = None,
        tenant: str | None = None,
    ) -> Iterator[StreamChunk]:
        """Yield one answer piece by piece; the last chunk carries the whole result. With n > 1 the choices
        come interleaved, and each has its own last chunk.

        Leaving the loop early aborts the request and frees its memory.
        """
        is_chat = not isinstance(prompt, str) and is_conversation(prompt)
        token_ids = self.encode_chat(prompt) if is_chat else self.encode(prompt)  # type: ignore[arg-type]
        return self.chunks(
            self.submit(token_ids, params, speculation=speculation, route=route, tenant=tenant)
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """Return a raw prompt's token ids, with the BOS token if the model wants one."""
        return self._maker.encode(prompt)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return a conversation's token ids, rendered with the model's chat template."""
        return self._maker.encode_chat(messages)

    def submit(
        self,
        token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
        route: str | None = None,
        tenant: str | None = None,
    ) -> str:
        """Queue one request and return its id; `chunks` or `run` then drive the engine."""
        engine = self.loaded.engine
        request = self._maker.make(
            token_ids, params, speculation=speculation, request_id=request_id, route=route, tenant=tenant
        )
        engine.submit(request)
        self._inbox[request.id] = _Inbox(request.sampling.n)
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
        num_unread = inbox.num_running
        try:
            yield StreamChunk(request_id, "")  # taken by `chunks`
            while num_unread:
                while not inbox.chunks:
                    self._pump(request_id)
                chunk = inbox.chunks.popleft()
                num_unread -= chunk.is_last
                yield chunk
        finally:
            if self._inbox.pop(request_id, None) is not None and self._loaded is not None:
                self._loaded.engine.abort(request_id, is_reported=False)

    def run(self) -> Iterator[StreamChunk]:
        """Step until every submitted request has ended, yielding all chunks as they come."""
        while self.loaded.engine.has_work:
            for chunk in self.loaded.engine.step():
                inbox = self._inbox.get(chunk.request_id)
                if inbox is not None:
                    inbox.num_running -= chunk.is_last
                    if not inbox.num_running:
                        del self._inbox[chunk.request_id]
                yield chunk

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None,
        speculation: SpeculationParams | None,
        names: Mapping[str, str | None],
    ) -> list[GenerationResult]:
        request_ids: list[str] = []
        try:
            for token_ids in prompts:
                request_ids.append(self.submit(token_ids, params, speculation=speculation, **names))
            return [result for request_id in request_ids for result in _results(self.chunks(request_id))]
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
                self._inbox[chunk.request_id].chunks.append(chunk)


def _results(chunks: Iterator[StreamChunk]) -> list[GenerationResult]:
    """Return all choices of one request, in their order."""
    return sorted((chunk.result for chunk in chunks if chunk.result is not None), key=lambda r: r.index)


def _not_waiting(request_id: str) -> InvalidParameterError:
    return InvalidParameterError(
        given=f"request id {request_id!r}, of which no chunks wait to be read",
        expected="the id of a request that was submitted and not yet read to its end",
        remedy="Submit it first, and read it in one place",
    )
