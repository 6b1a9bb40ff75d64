"""The frozen records that cross the borders between parts of the engine.

Words used here and everywhere else (metrics, documents, flags):

drafted, accepted   draft tokens proposed to the target; those of them that were emitted
bonus               the one token that the target itself adds in each step
acceptance rate     accepted / drafted
acceptance length   tokens emitted for each verify step, bonus included: 1 .. k + 1
draft length k      tokens proposed for one sequence in one step; 0 is plain decoding
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from paceline.parameters import Parameters, StructuredOutput

MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 128


class Verification(enum.StrEnum):
    """How drafts are judged."""

    COUPLED = "coupled"
    """Accept exactly when the draft equals the target's own seeded sample: same seed, same bytes."""
    REJECTION = "rejection"
    """Accept with min(1, p / q): same distribution, not the same bytes."""


class AnswerSharing(enum.StrEnum):
    """Whose earlier answers drafts of a request may come from; never changes an answer."""

    TENANT_AND_ROUTE = "tenant-and-route"
    """Those of the same tenant on the same route."""
    ROUTE = "route"
    """Those of any tenant on the same route."""
    TENANT = "tenant"
    """Those of the same tenant on any route."""
    ALL = "all"
    """Those of anybody."""


class FinishReason(enum.StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """An end-of-sequence token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the end of the context."""
    ABORT = "abort"
    """The caller asked for it."""
    ERROR = "error"
    """The engine could not go on with this one; the result carries the error."""


class SamplingParams(Parameters):
    """How one request's tokens are chosen. The default is greedy decoding.

    Order of work at each position, on the target's logits given the accepted prefix: repetition, then
    presence and frequency penalties; logit bias; the ban on stop tokens until `min_tokens`, and on tokens
    that `structured_output` does not allow; arg-max if `temperature` is 0; else temperature, top-k, top-p,
    min-p, in that order.
    """

    temperature: float = Field(0.0, ge=0.0, allow_inf_nan=False)
    """0 is greedy decoding: the token with the greatest logit, ties to the lowest id."""
    top_k: int = Field(0, ge=0, lt=2**31)
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    """Keep the smallest set of most probable tokens whose probabilities reach this sum."""
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    """Drop tokens less probable than this share of the most probable one."""
    repetition_penalty: float = Field(1.0, gt=0.0, allow_inf_nan=False)
    """Divides positive and multiplies negative logits of tokens seen in prompt or output (CTRL, 2019)."""
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    """Subtracted once from the logit of each token seen in the output."""
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    """Subtracted from a token's logit for each time that it was seen in the output."""
    logit_bias: Mapping[int, float] = Field(default_factory=dict)
    """Token id to a value in [-100, 100] added to its logit."""
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    """64-bit seed (negative numbers count modulo 2**64); none draws one, which the result carries."""
    stop: tuple[str, ...] = ()
    """Strings that end the text; the text stops just before the first one."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, in addition to the model's own."""
    ignore_eos: bool = False
    """Do not end at the model's own end tokens."""
    max_tokens: int | None = Field(None, ge=1)
    """Most tokens to produce; none goes on to the end of the context."""
    min_tokens: int = Field(0, ge=0)
    """No end token and no stop string takes effect before this many tokens. A structured output that is
    complete ends the answer all the same."""
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    """Return log-probabilities of the chosen token and of this many most probable ones (of the target's
    unmodified distribution)."""
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    """The same for each token of the prompt; its first has none. The whole prompt is computed for them."""
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    """Answers to the one prompt. Choice j has the seed `sampling.noise.derive_seed(seed, j)`, choice 0 the
    seed itself, so choice j is the only answer of a request with that seed."""
    structured_output: StructuredOutput | None = None
    """The form that the answer must have; none leaves it free."""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_is_a_list_of_one(cls, value: Any) -> Any:
        return () if value is None else (value,) if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("stop strings of at least one character")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _bias_in_range(cls, value: Mapping[int, float]) -> Mapping[int, float]:
        for token_id, bias in value.items():
            if token_id < 0 or not -100.0 <= bias <= 100.0:
                raise ValueError("token ids from 0 up, with values from -100 to 100")
        return value

    @model_validator(mode="after")
    def _min_within_max(self) -> SamplingParams:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) at most max_tokens ({self.max_tokens})")
        return self

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is used."""
        return self.temperature == 0.0


class SpeculationParams(Parameters):
    """Whether and how one request is speculated for; never changes the answer under coupled verification."""

    enabled: bool | Literal["auto", "route"] = True
    """"auto" lets the policy choose draft lengths, 0 among them; "route" does what the request's route says,
    also where that changes while the request runs."""
    drafter: str | None = None
    """Name of one of the engine's drafters; none takes the engine's default, or what the policy chooses."""
    draft_length: int = Field(4, ge=0, le=64)
    """Fixed k: tokens proposed in each step; 0 is plain decoding. Not read where the policy chooses."""
    max_draft_length: int | None = Field(None, ge=1, le=64)
    """Most tokens proposed in a step where the policy chooses; none leaves it to the route."""
    verification: Verification = Verification.COUPLED

    @property
    def is_adaptive(self) -> bool:
        """Whether the policy chooses the draft length."""
        return self.enabled in ("auto", "route")


def draw_seed() -> int:
    """Return 64 random bits from the operating system, for a request that came without a seed."""
    return secrets.randbits(64)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, checked and tokenised, as the engine takes it."""

    id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    speculation: SpeculationParams
    seed: int
    """The request's 64-bit seed, given or drawn."""
    route: str | None = None
    tenant: str | None = None
    """Who asks, such as the name of an API key: what one tenant's answers teach is kept from another."""


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at one position, of the target's distribution before any processor."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability) of the most probable tokens, best first."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What speculation did for one sequence, or for a sum of sequences."""

    drafter: str | None
    """Name of the drafter, or none where speculation was off."""
    num_steps: int = 0
    """Target steps that decoded this sequence (the prefill's own sample is not one)."""
    num_drafted: int = 0
    num_accepted: int = 0
    """Drafted tokens that were emitted; those cut off by a stop or a cap do not count."""
    num_emitted: int = 0
    """Tokens emitted in those steps: accepted and bonus."""
    fallback: str | None = None
    """Why there were no drafts, for a while or to the end, though the request asked for them."""
    drafted_by_position: tuple[int, ...] = ()
    """How many drafts stood at the first place of their step, at the second, ..."""
    accepted_by_position: tuple[int, ...] = ()
    """How many of these were emitted."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; none where nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted for each step; none where there was no step."""
        return self.num_emitted / self.num_steps if self.num_steps else None

    def to_json(self) -> dict[str, Any]:
        """Return the record as `paceline generate --json` and the server show it."""
        return {
            "drafter": self.drafter,
            "num_steps": self.num_steps,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
            "drafted_by_position": list(self.drafted_by_position),
            "accepted_by_position": list(self.accepted_by_position),
            "fallback": self.fallback,
        }


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall-clock seconds of one request."""

    ttft_s: float | None
    """From submission to the first token."""
    decode_s: float
    """From the first token to the last."""
    draft_s: float
    """Spent drafting in the steps that this sequence took part in; batch mates share the same seconds."""
    verify_s: float
    """Spent in the target's forward passes of those steps."""
    num_decoded: int
    """Tokens that came after the first."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    """Readings of the engine's clock, to compare answers of one engine with each other."""

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first / `decode_s`; none where there were none."""
        return self.num_decoded / self.decode_s if self.decode_s > 0 and self.num_decoded else None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The answer to one request."""

    id: str
    route: str | None
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    speculation: SpeculationStats
    timing: Timing
    seed: int
    """Of this choice: a request with this seed and n = 1 repeats it."""
    logprobs: tuple[PositionLogprobs, ...] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens whose KV was there from an earlier request."""
    error: Exception | None = field(default=None, compare=False)
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    """One for each token of the prompt, none for its first; on choice 0 only."""
    index: int = 0
    """Which of the request's n choices this is."""


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """A piece of one answer, as it becomes certain. With n > 1, pieces of the choices come interleaved."""

    request_id: str
    text: str
    """New text; never half a character, never the beginning of a stop string."""
    token_ids: tuple[int, ...] = ()
    """New token ids. Text may lag behind them."""
    num_accepted: int = 0
    """How many of the new tokens were drafted."""
    result: GenerationResult | None = None
    """The whole answer, on the last chunk only."""
    index: int = 0
    """Which of the request's n choices this is a piece of."""
    is_draft: tuple[bool, ...] = ()
    """For each new token, whether it was drafted."""
    logprobs: tuple[PositionLogprobs, ...] | None = None
    """For each new token, where the request asked for them."""

    @property
    def is_last(self) -> bool:
        """Whether this choice ended with this chunk."""
        return self.result is not None
