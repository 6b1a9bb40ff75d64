"""What is kept of a request inside the engine core, and how its route is read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import InvalidParameterError
from paceline.metrics.counts import MAX_POSITIONS
from paceline.policy.interface import PLAIN, DraftChoice
from paceline.policy.routes import RouteOverride, RouteSettings
from paceline.records import (
    FinishReason,
    GenerationResult,
    SpeculationParams,
    SpeculationStats,
    Timing,
    Usage,
)
from paceline.vllm.bridge import ENABLED_ARGUMENT, MAX_DRAFT_LENGTH_ARGUMENT, ROUTE_ARGUMENT

_WORDS: Mapping[object, bool | str] = {
    "true": True, "1": True, 1: True, "false": False, "0": False, 0: False, "auto": "auto",
}  # fmt: skip
"""vLLM turns truth values in `vllm_xargs` into numbers."""
ROUTE_DECIDES = SpeculationParams(enabled="route")


def read_route(extra_args: Mapping[str, Any] | None) -> str | None:
    """Return the name of the route that a request says; none if it says none."""
    name = (extra_args or {}).get(ROUTE_ARGUMENT)
    return None if name is None else str(name)


def read_speculation(
    extra_args: Mapping[str, Any] | None, name: str, route: RouteSettings
) -> SpeculationParams:
    """Return what a request asks of its route.

    Args:
        extra_args: the request's, from `vllm_xargs`.
        name: of its route.
        route: its settings.

    Raises:
        InvalidParameterError: it asks for what there is not, or for more than the route allows.
    """
    values = {
        key: extra_args[argument]
        for key, argument in (("enabled", ENABLED_ARGUMENT), ("max_draft_length", MAX_DRAFT_LENGTH_ARGUMENT))
        if extra_args and argument in extra_args
    }
    if not values:
        return ROUTE_DECIDES
    if "enabled" in values:
        word = values["enabled"]
        found = _WORDS.get(word.lower() if isinstance(word, str) else word)
        if found is None:
            raise InvalidParameterError(
                given=f"{ENABLED_ARGUMENT} = {word!r:.60}",
                expected="true, false or auto",
                remedy="Change it, or leave it out",
            )
        values["enabled"] = found
    return RouteOverride(**values).within(name, route)


def within(speculation: SpeculationParams, most: int) -> SpeculationParams:
    """Return what a request asks, no longer than the engine's longest drafts.

    Args:
        speculation: what it asks.
        most: vLLM's `num_speculative_tokens`; 0 where it drafts nothing.
    """
    asked = speculation.max_draft_length
    if not most or (asked is not None and asked <= most):
        return speculation
    return speculation.model_copy(update={"max_draft_length": most})


@dataclass(slots=True)
class RouteRequest:
    """One request of the engine core."""

    id: str
    number: int
    """Its name towards the policy; never used twice."""
    route: str
    speculation: SpeculationParams
    num_prompt_tokens: int
    arrived_at: float
    holds_drafts: bool
    """Whether the draft model's KV has no holes for it; false for ever once it lived through a step without
    the draft model's pass."""
    planned: DraftChoice = PLAIN
    """What the policy said of the drafts that are verified in its next step."""
    is_running: bool = False
    num_cached_tokens: int | None = None
    """Found in the prefix cache; none until it was scheduled."""
    num_output_tokens: int = 0
    num_steps: int = 0
    num_emitted: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    drafted_at: list[int] = field(default_factory=lambda: [0] * MAX_POSITIONS)
    accepted_at: list[int] = field(default_factory=lambda: [0] * MAX_POSITIONS)
    first_token_at: float | None = None
    last_token_at: float | None = None
    drafter: str | None = None

    def count(self, num_drafted: int, num_accepted: int, num_new: int) -> None:
        """Count a step in which it decoded."""
        self.num_steps += 1
        self.num_emitted += num_new
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        for position in range(min(num_drafted, MAX_POSITIONS)):
            self.drafted_at[position] += 1
            self.accepted_at[position] += position < num_accepted

    def emit(self, num_new: int, now: float) -> None:
        """Count tokens that joined the answer."""
        self.num_output_tokens += num_new
        self.last_token_at = now
        if self.first_token_at is None:
            self.first_token_at = now

    def result(self, reason: FinishReason) -> GenerationResult:
        """Return what metrics and policy hear of it at its end. Its text is not known here."""
        first, last = self.first_token_at, self.last_token_at
        num_positions = sum(count > 0 for count in self.drafted_at)
        return GenerationResult(
            id=self.id, route=self.route, text="", token_ids=(), finish_reason=reason,
            usage=Usage(self.num_prompt_tokens, self.num_output_tokens),
            speculation=SpeculationStats(
                self.drafter, self.num_steps, self.num_drafted, self.num_accepted, self.num_emitted,
                drafted_by_position=tuple(self.drafted_at[:num_positions]),
                accepted_by_position=tuple(self.accepted_at[:num_positions]),
            ),
            timing=Timing(
                None if first is None else first - self.arrived_at,
                0.0 if first is None or last is None else last - first,
                0.0, 0.0, max(0, self.num_output_tokens - 1), first, last,
            ),
            seed=0, num_cached_tokens=self.num_cached_tokens or 0,
        )  # fmt: skip
