"""What the endpoints share: models, routes, limits, and the way from a checked call to running answers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from paceline import __version__
from paceline.administration.access import Caller, Gate
from paceline.administration.decisions import DecisionHistory
from paceline.administration.overlay import OverlayStore
from paceline.administration.reload import ConfigFollower
from paceline.administration.route_book import RouteBook
from paceline.administration.routing import resolve_route
from paceline.config.server import ServeSettings
from paceline.engine.engine import Engine
from paceline.engine.requests import Messages, Prompt
from paceline.errors import PromptTooLongError
from paceline.metrics.collector import PacelineCollector
from paceline.metrics.counts import Counts
from paceline.models.chat_template import require_chat_template
from paceline.models.tokenizer import Tokenizer
from paceline.policy.controller import SpeculationPolicy
from paceline.records import GenerationResult
from paceline.runtime import AsyncLLM
from paceline.server.calls import Answers, Call
from paceline.server.capture import Capture
from paceline.server.engine_routes import EngineRoutes
from paceline.server.tools import check_tools

LONG_TEXT = 4000
"""Characters from which on a prompt is tokenised off the event loop."""


class Service:
    """A loaded engine and all that the endpoints need of it.

    Args:
        llm: models and engine; `start` starts it.
        settings: what the server was started with.
        models: (name, digest of its files) of the target, and of the draft if there is one, by role.
        book: the routes, where somebody else keeps them; else the service does, with their changes.
        follower: follows the configuration; else the service does, by its file.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        settings: ServeSettings,
        models: Mapping[str, tuple[str, str]],
        book: RouteBook | None = None,
        follower: ConfigFollower | None = None,
    ) -> None:
        self.llm = llm
        self.settings = settings
        self.store = OverlayStore(settings.state_path)
        self.book = book or RouteBook(settings.engine, self.store, EngineRoutes(llm.runtime))
        self.follower = follower or ConfigFollower(settings, self.book)
        self.decisions = DecisionHistory(settings.engine.decision_log)
        self.capture = None if settings.capture is None else Capture(settings.capture)
        self.gate = Gate(settings.server)
        self.model_name = settings.model_name
        self.models = models
        self.fingerprint = f"paceline-{__version__}-{models['target'][1]}"
        """Same fingerprint, same seed, same answer."""
        self.counts = Counts(tuple(settings.engine.routes))
        self.collector = PacelineCollector(self.counts, models)
        self.registry = CollectorRegistry()
        self.registry.register(self.collector)

    async def start(self) -> None:
        """Start the engine's thread, count what it does, and put routes in force as they were left."""
        runtime = self.llm.runtime
        runtime.start()
        runtime.add_stall_listener(self.counts.on_stall)
        await runtime.call(self._observe)
        await self.book.start()

    def close(self) -> None:
        """Let go of files, once the engine's thread has ended."""
        self.store.close()

    def _observe(self, engine: Engine) -> None:
        engine.observers.add(self.counts)
        if isinstance(engine.policy, SpeculationPolicy):
            engine.policy.log.add_listener(self.counts.on_decision)
            engine.policy.log.add_listener(self.decisions.add)

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's."""
        return self.llm.loaded.tokenizer

    def route(self, model: str, header: str | None, caller: Caller) -> str:
        """Return the route of a request; see `resolve_route`."""
        return resolve_route(
            self.model_name, model, header, caller.route, self.book.routes, self.book.default
        )

    async def encode(self, prompt: Prompt) -> list[int]:
        """Return a plain prompt's token ids.

        Raises:
            PromptTooLongError: it is longer than the server allows.
        """
        if isinstance(prompt, str) and len(prompt) > LONG_TEXT:
            return self._checked(await asyncio.to_thread(self.llm.encode, prompt))
        return self._checked(self.llm.encode(prompt))

    async def encode_chat(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Return a conversation's token ids.

        Raises:
            InvalidParameterError: it has tools, and the model's template has none.
            PromptTooLongError: it is longer than the server allows.
        """
        template = self.llm.loaded.chat_template
        if tools or any(message["role"] == "tool" or "tool_calls" in message for message in messages):
            check_tools(template)
        template = require_chat_template(template, self.model_name)
        encode = functools.partial(template.encode, messages, tools=tools)
        if sum(len(message.get("content") or "") for message in messages) > LONG_TEXT:
            return self._checked(await asyncio.to_thread(encode))
        return self._checked(encode())

    def _checked(self, token_ids: list[int]) -> list[int]:
        most = self.settings.server.max_prompt_tokens
        if most is not None and len(token_ids) > most:
            raise PromptTooLongError(
                given=f"a prompt of {len(token_ids)} tokens",
                expected=f"at most {most}",
                remedy="Shorten it, or raise server.max_prompt_tokens",
            )
        return token_ids

    async def open(self, call: Call) -> Answers:
        """Queue a call and return its answers, which have to be closed.

        Raises:
            RequestError: it can never run.
            BusyError: there is no place for it.
            DeadlineError: its turn did not come in time.
            ShutDownError: the server takes no more.
        """
        speculation = call.override.within(call.route, self.book.routes[call.route])
        answers = Answers(call, self.settings.server.request_timeout_s)
        try:
            async with answers.deadline():
                await answers.take_turn()
                for index, token_ids in enumerate(call.prompts):
                    answers.streams.append(
                        await self.llm.submit(
                            token_ids,
                            call.sampling,
                            speculation=speculation,
                            request_id=f"{call.id}-{index}" if index else call.id,
                            route=call.route,
                            tenant=call.caller.name,
                        )
                    )
        except BaseException:
            answers.close()
            raise
        return answers

    def sources(
        self, route: str, given: Sequence[Mapping[str, Any] | None]
    ) -> Sequence[Mapping[str, Any] | None]:
        """Return what is to be captured of a call on this route: all of it, or nothing."""
        return given if self.capture is not None and self.capture.wants(route) else ()

    def capture_answers(self, answers: Answers) -> None:
        """Write down a call whose answers have come, if it was drawn."""
        call = answers.call
        for index, source in enumerate(call.sources):
            if source is not None and self.capture is not None:
                self.capture.write(source, call.route, call.sampling, answers.of_prompt(index))

    async def speculation_record(self, result: GenerationResult) -> dict[str, Any]:
        """Return what speculation did for an answer, with the state of its route now."""
        state, sentence = await self.llm.runtime.call(lambda engine: _state(engine.policy, result.route))
        return {**result.speculation.to_json(), "route": result.route, "state": state, "sentence": sentence}


def _state(policy: object, route: str | None) -> tuple[str, str]:
    if not isinstance(policy, SpeculationPolicy) or route is None:
        return "unknown", "the engine has no policy"
    report = policy.report(route)
    return report.state.value, report.sentence
