"""From what a caller passes to the request that an engine takes; one for the sync and the async interface."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from paceline.config.drafter_names import resolved
from paceline.config.engine import EngineSettings
from paceline.engine.loading import LoadedEngine
from paceline.errors import EmptyPromptError, InvalidParameterError
from paceline.models.chat_template import require_chat_template
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.routes import RouteOverride
from paceline.records import Request, SamplingParams, SpeculationParams, draw_seed

Prompt = str | Sequence[int]
"""Text, or token ids."""
Messages = Sequence[Mapping[str, Any]]
"""A conversation in the form of OpenAI's chat API: [{"role": ..., "content": ...}, ...]."""


class RequestMaker:
    """Tokenises prompts and fills in what a request left open. Safe to use from several threads.

    Args:
        loaded: the models that the requests are for.
        settings: the defaults.
    """

    def __init__(self, loaded: LoadedEngine, settings: EngineSettings) -> None:
        self._loaded = loaded
        self._settings = settings
        self._numbers = itertools.count()

    def encode(self, prompt: Prompt) -> list[int]:
        """Return a raw prompt's token ids, with the BOS token if the model wants one."""
        if isinstance(prompt, str):
            return self._loaded.tokenizer.encode(prompt, add_special=True)
        return as_token_ids(prompt)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Return a conversation's token ids, rendered with the model's chat template."""
        template = require_chat_template(self._loaded.chat_template, self._loaded.target_name)
        return template.encode(messages)

    def make(
        self,
        token_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
        route: str | None = None,
        tenant: str | None = None,
    ) -> Request:
        """Return a request with its id, seed and drafter, drawn or taken from the defaults where not given.

        Args:
            token_ids: the prompt.
            params: how tokens are chosen.
            speculation: overrides the engine's default.
            request_id: a name that no unfinished request has.
            route: the kind of traffic that it belongs to.
            tenant: who asks, such as the name of an API key. What drafters learn from answers is kept apart
                by tenant and route, unless `answer_sharing` says otherwise.

        Raises:
            InvalidParameterError: an argument is of another type, or there is no such route.
        """
        params = SamplingParams() if params is None else params
        check_type("params", params, SamplingParams)
        for name, value in (("request_id", request_id), ("route", route), ("tenant", tenant)):
            _check_name(name, value)
        route, speculation = self._route(route, speculation)
        return Request(
            id=request_id if request_id is not None else f"request-{next(self._numbers)}",
            prompt_token_ids=tuple(as_token_ids(token_ids)),
            sampling=params,
            speculation=self._with_drafter(speculation),
            seed=draw_seed() if params.seed is None else params.seed % 2**64,
            route=route,
            tenant=tenant,
        )

    def _route(
        self, name: str | None, speculation: SpeculationParams | None
    ) -> tuple[str | None, SpeculationParams]:
        """Return the route that a request belongs to, and how it speculates."""
        policy = self._loaded.engine.policy
        if not self._settings.routes or not isinstance(policy, SpeculationPolicy):
            return name, self._settings.speculation_params if speculation is None else speculation
        route = policy.routes.resolve(name)
        if speculation is None:
            speculation = RouteOverride().within(route, policy.routes[route])
        return route, speculation

    def _with_drafter(self, given: SpeculationParams) -> SpeculationParams:
        """Return how a request speculates, the engine's drafter filled in where it names none."""
        check_type("speculation", given, SpeculationParams)
        if given.drafter is not None:
            name = resolved(given.drafter, tuple(self._loaded.engine.drafters))
            return given if name == given.drafter else given.model_copy(update={"drafter": name})
        if given.enabled is not True:
            return given
        drafter = self._settings.effective_drafter
        if drafter is None and given.draft_length:
            raise InvalidParameterError(
                given="speculation without a drafter",
                expected="one of " + ", ".join(map(repr, self._loaded.engine.drafters)),
                remedy="Name one in the request, start the engine with one, or switch speculation off",
            )
        return given.model_copy(update={"drafter": drafter})


def check_type(name: str, value: object, expected: type) -> None:
    """Refuse an argument of another type, such as a plain mapping for an object of ours."""
    if not isinstance(value, expected):
        raise InvalidParameterError(
            given=f"{name} of type {type(value).__name__}",
            expected=f"a {expected.__name__}",
            remedy=f"Pass {name}={expected.__name__}(...)",
        )


def _check_name(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidParameterError(
            given=f"{name} of type {type(value).__name__}",
            expected="text, or none",
            remedy=f"Pass {name} as a string",
        )


def is_conversation(value: object) -> bool:
    """Whether this is a list of messages, and not text or token ids."""
    return isinstance(value, Sequence) and bool(value) and isinstance(value[0], Mapping)


def is_batch(value: object) -> bool:
    """Whether these are several conversations; one is a list of mappings."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(item, Sequence) and not isinstance(item, str) for item in value)
    )


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
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


def as_token_ids(prompt: object) -> list[int]:
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
