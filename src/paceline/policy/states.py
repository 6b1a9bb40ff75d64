"""What a route is doing, and every change of it as a record that a person can read."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


class RouteState(enum.StrEnum):
    """Whether a route's sequences may draft."""

    SPECULATING = "speculating"
    """Drafts wherever a step gains by it; the policy pauses it, a person switches it off."""
    PAUSED = "paused"
    """No draft work but for probes; the policy resumes it."""
    OFF = "off"
    """A person wants it so, and only a person changes it."""


class PauseReason(enum.StrEnum):
    """Why a route is paused."""

    LOAD = "load"
    """So many sequences at once that rows of the target are dear; at fewer it would pay."""
    ACCEPTANCE = "acceptance"
    """Too few drafts are accepted, even for one sequence alone."""
    SHORT_OUTPUTS = "short outputs"
    """Answers end before drafting has paid for its beginning."""
    MEMORY = "memory"
    """Draft KV takes blocks that requests wait for."""


class EventKind(enum.StrEnum):
    """What a recorded event is."""

    STATE = "state"
    DRIFT = "drift"
    """Acceptance left its band."""
    SETTING = "setting"
    """A person changed the route."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The numbers that a decision rests on; none where there is no such number."""

    concurrency: int
    """Decoding sequences of all routes."""
    of_route: int
    """Those of them that are of this route."""
    rows_each: int
    """Rows that a drafting sequence brings: its drafts and one."""
    cost_ratio: float | None
    """Step with those rows for each sequence of the route, drafting included / step without."""
    break_even: float | None
    """Acceptance rate at which drafting gains nothing, whatever its length."""
    acceptance: float | None
    """Measured: chance that a first draft is accepted, of all that are drawn."""
    speedup: float | None
    """Expected goodput / goodput without drafts, for the best draft lengths."""
    output_length: float | None
    """Expected tokens of an answer."""
    kv_share: float | None
    """Share of the KV blocks that is held."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One change, with what was known before and after."""

    at: float
    """The engine's clock, seconds."""
    step: int
    route: str
    kind: EventKind
    before: str
    """State, or value, as a word: "speculating", "paused: load"."""
    after: str
    sentence: str
    by: str = "policy"
    """Who decided: the policy, or the name of a person's key."""
    numbers_before: Mapping[str, Any] = field(default_factory=dict)
    """The situation when the state that ends was entered."""
    numbers_after: Mapping[str, Any] = field(default_factory=dict)
    """The situation now."""

    def to_json(self) -> dict[str, Any]:
        """Return the line of the decision log."""
        return {**asdict(self), "kind": self.kind.value}


def state_word(state: RouteState, reason: PauseReason | None) -> str:
    """Return a state as one word, or two."""
    return f"{state.value}: {reason.value}" if reason is not None else state.value
