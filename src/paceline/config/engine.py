"""What an engine is started with, checked once and frozen."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from paceline.config.drafter_names import (
    DRAFT_NAME,
    MIXED,
    MODEL,
    SUFFIX,
    is_mixed,
    model_named,
    model_of,
    resolved,
    with_mixed,
)
from paceline.config.routes import RouteSettings
from paceline.errors import ConfigError
from paceline.records import AnswerSharing, SpeculationParams, Verification

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a size such as "800MB" or "1.5 GiB" means."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", text.lower())
    if match is None:
        raise ValueError('a size such as 2000000000, "800MB" or "1.5GiB"')
    return int(Decimal(match[1]) * _UNITS[match[2] or ""])


class EngineSettings(BaseModel):
    """Models, speculation defaults and limits of one engine."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    target: str = Field(min_length=1)
    """Preset name, GGUF or safetensors file, or folder of the model whose output counts."""
    draft: str | None = Field(None, min_length=1)
    """The same, of the model that proposes."""
    drafts: Mapping[str, str] = Field(default_factory=dict)
    """The same, of several models by names of their own, instead of `draft`: {small: ..., code: ...}.
    Drafters are then called `model:small` and `mixed:small`; `model` alone is the first."""
    drafter: str | None = None
    """What proposes tokens: `model`, `suffix`, `mixed` or `none`; not given, it is the draft model if there
    is one, else nothing. `mixed` takes what followed a long match in the text or in earlier answers, and asks
    the draft model elsewhere."""
    answer_store_tokens: int = Field(65_536, ge=0)
    """Tokens of earlier answers, for each tenant and route, that `suffix` and `mixed` draft from; 0: none."""
    answer_sharing: AnswerSharing = AnswerSharing.TENANT_AND_ROUTE
    """Whose earlier answers the drafts of a request may come from."""
    draft_length: int = Field(4, ge=0, le=64)
    """Fixed k: tokens proposed in each step."""
    speculation: bool | Literal["auto"] = True
    """Whether requests speculate unless they say otherwise; "auto" lets the policy choose draft lengths, 0
    among them, by what it measures."""
    max_draft_length: int = Field(8, ge=1, le=64)
    """Most tokens proposed in a step where the policy chooses."""
    routes: Mapping[str, RouteSettings] = Field(default_factory=dict)
    """Routes by name; with them, requests belong to one, and speculate as it says."""
    default_route: str | None = None
    """The route of requests that name none, or one that is not there; without it both are refused."""
    calibration: Literal["auto", "always", "off"] = "auto"
    """Step costs, where a policy needs them: those of an earlier start if there are any, measured anew, or a
    guess that serving corrects."""
    acceptance_history: bool = False
    """Whether what the policy learns of acceptance and of the length of answers is kept for the next start
    with the same models, in `PACELINE_CACHE/acceptance`; each replica keeps its own. A
    server keeps it unless this says false or calibration is off; elsewhere each start begins anew unless this
    says true."""
    decision_log: Path | None = None
    """File that the policy's decisions are appended to."""
    verification: Verification = Verification.COUPLED
    """How drafts are judged: `coupled` keeps the bytes of a seed, `rejection` their distribution."""
    context_length: int | None = Field(None, ge=2)
    """Most tokens of one sequence, prompt and output; not given, the model's own, as far as memory allows."""
    max_num_seqs: int = Field(8, ge=1)
    """Sequences that run at once."""
    max_num_batched_tokens: int = Field(512, ge=1)
    """Rows of one step, all sequences together."""
    prefill_chunk: int = Field(256, ge=1)
    """Most prompt rows of one sequence in one step."""
    mixed_prefill_ratio: float = Field(1.5, ge=0.0, allow_inf_nan=False)
    """Prompt rows for each other row of a step in which sequences decode; such a step takes at most 1 + this
    times as long as it would without prompts. Eight rows there are always."""
    max_overtaking_s: float = Field(1.0, ge=0.0, allow_inf_nan=False)
    """A waiting request that does not fit the KV memory is overtaken by later ones that do, until it has
    waited this many seconds."""
    joint_start_s: float = Field(4.0, ge=0.0, allow_inf_nan=False)
    """For so many seconds after a stream's first token, prompts of requests that had come before it take all
    the rows they want: requests that come together start together. Then `mixed_prefill_ratio` holds."""
    kv_memory: int | None = Field(None, ge=1)
    """Bytes for the KV caches of both models together; not given, a quarter of the memory that is free."""
    block_size: int = Field(16, ge=1)
    """Token positions in a KV block."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; `auto` takes a GPU if PyTorch sees one."""
    threads: int | None = Field(None, ge=1)
    """Threads that compute; not given, the CPUs that the process may use."""
    kernels: Literal["auto", "native", "reference"] = "auto"
    """Arithmetic on a CPU: native code, the float32 reference, or native code where it can run the model."""
    weights: Literal["file", "int8"] = "file"
    """Hold floating-point matrices as the files have them, or in 8 bits, which native kernels can run."""
    draft_weights: Literal["auto", "file", "int4"] = "auto"
    """Hold the draft model's matrices as its file has them, in 4 bits (other drafts, the same answers), or in
    4 bits where native kernels can run it and as the file has them elsewhere."""
    draft_vocab: Literal["auto", "full"] = "auto"
    """Draft only from the most frequent tokens where there is a list of them, or from all."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explain(error) from None

    @field_validator("kv_memory", mode="before")
    @classmethod
    def _size_in_words(cls, value: Any) -> Any:
        return parse_bytes(value) if isinstance(value, str) else value

    @field_validator("speculation", mode="before")
    @classmethod
    def _on_and_off(cls, value: Any) -> Any:
        if isinstance(value, bool) or value == "auto":
            return value
        if value not in ("on", "off"):
            raise ValueError("on, off or auto")
        return value == "on"

    @field_validator("routes", mode="before")
    @classmethod
    def _routes_of_words(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {
            name: one if isinstance(one, RouteSettings) else RouteSettings.of(str(name), one)
            for name, one in value.items()
        }

    @field_validator("drafts", mode="before")
    @classmethod
    def _drafts_by_name(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(DRAFT_NAME.fullmatch(str(name)) for name in value):
            raise ValueError("names of letters, digits, dots, dashes and underscores, each with its model")
        return {str(name): str(model) for name, model in value.items()}

    @field_validator("answer_store_tokens")
    @classmethod
    def _no_tiny_store(cls, value: int) -> int:
        if 0 < value < 1024:
            raise ValueError("0, or 1024 and more: less is gone before the next answer comes")
        return value

    @model_validator(mode="after")
    def _one_way_to_name_drafts(self) -> Self:
        if self.draft is not None and self.drafts:
            raise ConfigError(
                given=f"draft = {self.draft!r} beside drafts = {dict(self.drafts)}",
                expected="one of them",
                remedy="Give the single one a name among drafts too, or leave it out",
            )
        return self

    @model_validator(mode="after")
    def _drafter_has_its_model(self) -> Self:
        if self.drafter in (MODEL, MIXED) and not self.draft_models:
            raise ConfigError(
                given=f"drafter {self.drafter!r} without a draft model",
                expected="a draft model beside it",
                remedy="Name one with draft (--draft), or take the drafter 'suffix'",
            )
        known = (*with_mixed((SUFFIX, *self.draft_models)), "none")
        if self.drafter is not None and resolved(self.drafter, known) not in known:
            raise ConfigError(
                given=f"drafter = {self.drafter!r}",
                expected="one of " + ", ".join(map(repr, known)),
                remedy="Name one of these",
            )
        return self

    @model_validator(mode="after")
    def _routes_name_drafters_in_full(self) -> Self:
        models = tuple(self.draft_models)
        # The one change that a frozen object sees, before anybody else does.
        object.__setattr__(self, "routes", {name: route.among(models) for name, route in self.routes.items()})
        return self

    @model_validator(mode="after")
    def _a_row_for_each_sequence(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                given=f"max_num_batched_tokens = {self.max_num_batched_tokens}, "
                f"max_num_seqs = {self.max_num_seqs}",
                expected="at least one row for each sequence",
                remedy="Raise max_num_batched_tokens or lower max_num_seqs",
            )
        return self

    @model_validator(mode="after")
    def _default_is_a_route(self) -> Self:
        if self.default_route is not None and self.default_route not in self.routes:
            raise ConfigError(
                given=f"default_route = {self.default_route!r}",
                expected="one of the routes: " + (", ".join(self.routes) or "there is none"),
                remedy="Add that route, or name another default",
            )
        return self

    @property
    def is_adaptive(self) -> bool:
        """Whether a policy chooses draft lengths."""
        return self.speculation == "auto" or bool(self.routes)

    @property
    def draft_models(self) -> Mapping[str, str]:
        """The draft models there are, by what their drafters are called."""
        if self.draft is not None:
            return {MODEL: self.draft}
        return {model_named(name): model for name, model in self.drafts.items()}

    @property
    def uses_draft_models(self) -> bool:
        """Whether draft models are to be loaded: there are some, and the drafter needs one."""
        return self.effective_drafter not in (None, SUFFIX)

    @property
    def open_route(self) -> RouteSettings:
        """What holds for every request where no routes are configured and the policy chooses."""
        values: dict[str, Any] = {
            "max_draft_length": self.max_draft_length, "verification": self.verification
        }  # fmt: skip
        return RouteSettings(**values, **self.drafters_said).among(tuple(self.draft_models))

    @property
    def drafters_said(self) -> Mapping[str, tuple[str, ...]]:
        """The key `drafters` of a route that has what `drafter` says; nothing where that leaves it open."""
        drafter = self.effective_drafter
        if self.drafter in (None, "none") or drafter is None:
            return {}
        model = model_of(drafter) or SUFFIX
        return {"drafters": (SUFFIX, model) if is_mixed(drafter) else (model,)}

    @property
    def effective_drafter(self) -> str | None:
        """The drafter that requests use unless they name another; None if there is none."""
        models = tuple(self.draft_models)
        if self.drafter is None:
            return models[0] if models else None
        return None if self.drafter == "none" else resolved(self.drafter, with_mixed((SUFFIX, *models)))

    @property
    def speculation_params(self) -> SpeculationParams:
        """The defaults of a request."""
        drafter = self.effective_drafter
        if self.speculation == "auto" and self.drafter != "none":
            named = None if self.drafter is None else drafter
            return SpeculationParams(enabled="auto", drafter=named, verification=self.verification)
        return SpeculationParams(
            enabled=self.speculation and drafter is not None,
            drafter=drafter,
            draft_length=self.draft_length,
            verification=self.verification,
        )


def _explain(error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, EngineSettings.model_fields, n=1)
        return ConfigError(
            given=f"unknown setting {name!r}",
            expected="one of " + ", ".join(EngineSettings.model_fields),
            remedy=f"Write {near[0]!r} if you meant that" if near else "Check its spelling, or leave it out",
        )
    return ConfigError(
        given=f"no {name}" if first["type"] == "missing" else f"{name} = {first['input']!r}",
        expected=first["msg"].removeprefix("Value error, ").removeprefix("Input should be "),
        remedy=f"Give {name} a value that fits",
    )
