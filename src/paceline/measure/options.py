"""What a measurement is asked to do."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.records import SamplingParams

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DRAFT_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_.-]{0,31})=(.+)")


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Models, traffic and limits of one measurement."""

    target: str
    drafts: Mapping[str | None, str]
    """By name; the only one may have none. Empty measures look-ups alone."""
    traffic: Path
    output: Path
    routes: tuple[str, ...] | None = None
    """Only these, in this order."""
    merged: Mapping[str, str] = field(default_factory=dict)
    """Routes that are counted with another one."""
    concurrency: tuple[int, ...] = (1, 2, 4, 8)
    budget_s: float = 900.0
    prompts: int = 8
    """Most prompts of each route."""
    max_tokens: int = 64
    """Most tokens of an answer; the traffic's own cap holds where it is lower."""
    max_draft_length: int = 8
    temperature: float | None = None
    """For all requests; none leaves what the traffic says."""
    top_p: float | None = None
    seed: int = 0
    """Of the sample, and of requests that came without one."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the engine: context_length, kv_memory, threads."""

    def __post_init__(self) -> None:
        """Refuse what no request could be answered with."""
        self.sampling(SamplingParams(), 0)

    @property
    def draft_names(self) -> tuple[str | None, ...]:
        """The drafts to be measured; one that is none where there is no draft model."""
        return tuple(self.drafts) or (None,)

    def draft_of(self, name: str | None) -> str | None:
        """Return the draft model of a name; none where there is none."""
        return self.drafts.get(name)

    def sampling(self, own: SamplingParams, seed: int) -> SamplingParams:
        """Return how a request is answered here, given how it was asked for."""
        changes: dict[str, Any] = {
            "max_tokens": min(own.max_tokens or self.max_tokens, self.max_tokens),
            "seed": seed if own.seed is None else own.seed,
        }
        if own.min_tokens > changes["max_tokens"]:
            changes["min_tokens"] = changes["max_tokens"]
        if self.temperature is not None:
            changes["temperature"] = self.temperature
        if self.top_p is not None:
            changes["top_p"] = self.top_p
        return SamplingParams(**{**own.model_dump(exclude_defaults=True), **changes})

    def what(self) -> dict[str, Any]:
        """Return all that figures depend on: what must be the same for a measurement to go on."""
        return {
            "target": self.target,
            "drafts": [[name or "", draft] for name, draft in self.drafts.items()],
            "traffic": hashlib.sha256(self.traffic.read_bytes()).hexdigest(),
            "routes": None if self.routes is None else list(self.routes),
            "merged routes": dict(self.merged),
            "concurrency": list(self.concurrency),
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
            "max_draft_length": self.max_draft_length,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            **{key: str(value) for key, value in self.engine.items()},
        }


def parse_budget(text: str) -> float:
    """Return the seconds of a budget such as "90s", "15m" or "1h".

    Raises:
        ConfigError: it is none.
    """
    match = _BUDGET.fullmatch(text.strip().lower())
    if match is None or not float(match[1]) > 0:
        raise ConfigError(
            given=f"--budget {text}",
            expected="a number with its unit, s, m or h",
            remedy="Give --budget 90s, 15m or 1h",
        )
    return float(match[1]) * _SECONDS[match[2]]


def parse_drafts(given: Sequence[str]) -> dict[str | None, str]:
    """Return draft models by name, from `MODEL` or `NAME=MODEL`.

    Raises:
        ConfigError: one of several has no name, or two have the same.
    """
    found: dict[str | None, str] = {}
    for text in given:
        match = _DRAFT_NAME.fullmatch(text)
        name, model = (match[1], match[2]) if match else (None, text)
        if name in found or (name is None and len(given) > 1):
            raise ConfigError(
                given="--draft " + " --draft ".join(given),
                expected="a name of its own for each of several draft models",
                remedy="Give --draft small=MODEL --draft large=MODEL",
            )
        found[name] = model
    return found


def parse_routes(text: str | None) -> tuple[tuple[str, ...] | None, dict[str, str]]:
    """Return the routes to measure, and those that are counted with another one.

    Args:
        text: such as "chat,code" or "chat,chat_coding=chat"; none is all.

    Raises:
        ConfigError: a route is named twice, or counted with one that is not measured.
    """
    if text is None:
        return None, {}
    words = [word.strip() for word in text.split(",")]
    merged = dict(word.split("=", 1) for word in words if "=" in word)
    routes = tuple(word for word in words if "=" not in word)
    names = [*routes, *merged]
    if (
        not all(names)
        or not routes
        or len(set(names)) < len(names)
        or not set(merged.values()) <= set(routes)
    ):
        raise ConfigError(
            given=f"--routes {text}",
            expected="routes with commas between them, each once; OTHER=ROUTE counts OTHER with ROUTE",
            remedy="Give --routes chat,code or --routes chat,code,chat_coding=chat",
        )
    return routes, merged
