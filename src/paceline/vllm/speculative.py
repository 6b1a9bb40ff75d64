"""What vLLM is to draft with: one method for all routes, with the longest drafts that any of them wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.config.drafter_names import MODEL, SUFFIX, with_mixed
from paceline.config.engine import EngineSettings
from paceline.config.routes import DEFAULT_MAX_DRAFT_LENGTH, RouteSettings, Speculation
from paceline.config.server import ServeSettings
from paceline.errors import ConfigError
from paceline.vllm.facts import drafter_of
from paceline.vllm.model_names import as_named, loadable

NGRAM, DRAFT_MODEL = "ngram", "draft_model"
LENGTH = "num_speculative_tokens"


@dataclass(frozen=True, slots=True)
class Speculative:
    """What vLLM drafts with."""

    config: Mapping[str, Any] | None
    """The value of --speculative-config; none where there are no drafts."""
    drafter: str | None
    """What routes call it: `model` or `suffix`."""
    max_draft_length: int
    """No draft is longer, whatever a route says."""

    @property
    def can_be_left_out(self) -> bool:
        """Whether there is a worker that leaves this drafter out of steps in which nobody drafts."""
        return self.drafter == MODEL or (self.config or {}).get("method") == NGRAM

    def check(self, name: str, route: RouteSettings) -> None:
        """Refuse what a route says and vLLM could not do.

        Raises:
            ConfigError: it wants longer drafts, or other drafters.
        """
        wanted = route.draft_length or route.max_draft_length or 0
        is_off = route.speculation is Speculation.OFF
        if self.drafter is None:
            if not is_off:
                raise ConfigError(
                    given=f"speculation: {route.speculation} of route {name!r}",
                    expected="off: vLLM was told to draft nothing (drafter: none)",
                    remedy="Switch the route off, or leave drafter: none out and start again",
                )
            return
        if wanted > self.max_draft_length:
            raise ConfigError(
                given=f"drafts of {wanted} tokens on route {name!r}",
                expected=f"at most {self.max_draft_length}, for which vLLM was started",
                remedy="Ask for less, or set vllm.speculative.num_speculative_tokens and start again",
            )
        if not is_off and "drafters" in route.model_fields_set and not self.serves(route):
            raise ConfigError(
                given=f"drafters = {list(route.drafters)} of route {name!r}",
                expected=f"{self.drafter!r} among them: it is the one drafter that vLLM was started with",
                remedy="Name it, or switch speculation off for this route; drafter: suffix looks up for all",
            )

    def serves(self, route: RouteSettings) -> bool:
        """Whether the one drafter is among those that a route allows."""
        return any(one.split(":")[0] == self.drafter for one in with_mixed(route.drafters))


def speculative_of(settings: ServeSettings) -> Speculative:
    """Return what vLLM is to draft with.

    Raises:
        ConfigError: it cannot draft with what the configuration names, or a route does not go with it.
    """
    engine, said = settings.engine, dict(settings.vllm.speculative)
    if engine.drafter == "none" and not said:
        found = Speculative(None, None, 0)
    else:
        config = {**_method(settings), **said}
        longest = config.setdefault(LENGTH, _longest(engine.routes))
        if not isinstance(longest, int) or isinstance(longest, bool) or longest < 1:
            raise ConfigError(
                given=f"vllm.speculative.{LENGTH} = {longest!r:.40}",
                expected="a number from 1",
                remedy="Correct it, or leave it out: it then follows from the routes",
            )
        found = Speculative(config, drafter_of(config.get("method", "")), longest)
    for name, route in engine.routes.items():
        found.check(name, route)
    return found


def _longest(routes: Mapping[str, RouteSettings]) -> int:
    """Return the longest draft that any route wants."""
    return max(map(_most, routes.values())) or DEFAULT_MAX_DRAFT_LENGTH


def _most(route: RouteSettings) -> int:
    """Return the longest draft of a route. One that is off may be switched on while vLLM runs, and has a say
    if it says a length."""
    if route.speculation is Speculation.AUTO:
        return route.most_drafts
    said = route.draft_length or route.max_draft_length or 0
    return route.fixed_length if route.speculation is Speculation.ON else said


def _method(settings: ServeSettings) -> dict[str, Any]:
    engine, said = settings.engine, settings.vllm.speculative
    if "method" in said:
        # Only a draft model of its own follows from `draft`: the head of another method is not the same file.
        model = _draft_model(settings) if said["method"] == DRAFT_MODEL and "model" not in said else None
        return {} if model is None else {"model": model}
    has_model = "model" in said or settings.vllm.draft or engine.draft_models
    if not has_model or engine.drafter == SUFFIX or ("model" not in said and _wants_suffix_alone(engine)):
        return {"method": NGRAM}
    model = None if "model" in said else _draft_model(settings)
    return {"method": DRAFT_MODEL, **({} if model is None else {"model": model})}


def _wants_suffix_alone(engine: EngineSettings) -> bool:
    """Whether nothing but look-ups is to draft: each route that speculates says so, and there is one."""
    said = [
        route.drafters if "drafters" in route.model_fields_set else ()
        for route in engine.routes.values()
        if route.speculation is not Speculation.OFF
    ]
    return engine.drafter is None and bool(said) and all(one == (SUFFIX,) for one in said)


def _draft_model(settings: ServeSettings) -> str | None:
    if settings.vllm.draft is not None:
        return as_named(settings.vllm.draft, "vllm.draft")
    models = list(settings.engine.draft_models.values())
    if len(models) > 1:
        raise ConfigError(
            given=f"{len(models)} draft models: {', '.join(map(repr, models))}",
            expected="one: vLLM drafts with one model for all routes",
            remedy="Name the one that vLLM is to take as vllm.draft",
        )
    return loadable(models[0], "draft") if models else None


def describe(engine: EngineSettings) -> str:
    """Return how long the drafts of the routes are, for whoever reads the flags."""
    lengths = ", ".join(f"{name} {_most(route)}" for name, route in engine.routes.items())
    return f"most drafts of a route: {lengths}"
