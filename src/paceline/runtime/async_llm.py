"""The async Python API: what `LLM` is for scripts, for servers and notebooks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from paceline.config.engine import EngineSettings
from paceline.engine.loading import LoadedEngine, load_engine
from paceline.engine.requests import Messages, Prompt, RequestMaker, is_conversation
from paceline.records import GenerationResult, SamplingParams, SpeculationParams
from paceline.runtime.runtime import Runtime
from paceline.runtime.stream import AnswerStream


class AsyncLLM:
    """A loaded target model with its drafters, served from a thread of its own.

    Args:
        loaded: what `paceline.engine.loading.load_engine` returned; `AsyncLLM.load` does both.
        settings: what it was loaded with.
        runtime_options: see `Runtime`.

    Use it with `async with`, on one event loop.
    """

    def __init__(self, loaded: LoadedEngine, settings: EngineSettings, **runtime_options: Any) -> None:
        self.loaded = loaded
        self.settings = settings
        self.runtime = Runtime(loaded.engine, **runtime_options)
        self._requests = RequestMaker(loaded, settings)

    @classmethod
    async def load(cls, settings: EngineSettings, **runtime_options: Any) -> Self:
        """Load the models without holding up the event loop.

        Raises:
            ModelError, DownloadError: a model's files cannot be had or used.
            CapacityError: the memory does not hold a single useful sequence.
        """
        return cls(await asyncio.to_thread(load_engine, settings), settings, **runtime_options)

    async def __aenter__(self) -> Self:
        """Start."""
        self.runtime.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down at once; `runtime.shutdown` waits for answers."""
        await self.runtime.shutdown(0.0)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return a raw prompt's token ids, with the BOS token if the model wants one."""
        return self._requests.encode(prompt)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return a conversation's token ids, rendered with the model's chat template."""
        return self._requests.encode_chat(messages)

    async def submit(
        self,
        token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
        route: str | None = None,
        tenant: str | None = None,
    ) -> AnswerStream:
        """Queue one tokenised request and return its stream.

        `tenant` and `route` keep what drafters learn from answers apart, see `RequestMaker.make`; what is
        raised says `Runtime.submit`.
        """
        request = self._requests.make(
            token_ids, params, speculation=speculation, request_id=request_id, route=route, tenant=tenant
        )
        return await self.runtime.submit(request)

    async def stream(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
        route: str | None = None,
        tenant: str | None = None,
    ) -> AnswerStream:
        """Answer a prompt or a conversation piece by piece."""
        is_chat = not isinstance(prompt, str) and is_conversation(prompt)
        token_ids = self.encode_chat(prompt) if is_chat else self.encode(prompt)  # type: ignore[arg-type]
        return await self.submit(token_ids, params, speculation=speculation, route=route, tenant=tenant)

    async def generate(
        self,
        prompt: Prompt | Messages,
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
        route: str | None = None,
        tenant: str | None = None,
    ) -> tuple[GenerationResult, ...]:
        """Answer a prompt or a conversation, n times; a cancelled call aborts its request."""
        stream = await self.stream(prompt, params, speculation=speculation, route=route, tenant=tenant)
        return await stream.results()
