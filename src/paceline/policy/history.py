"""What a policy knows of its routes' acceptance, as plain values that outlive the process.

No word of a request is in it: counts by confidence bin, the bins of the latest drafts, and lengths of
answers. Whoever keeps it must keep it apart by target and draft models; names of routes are its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.errors import ConfigError
from paceline.policy.calibration import MOST_THETA, THETA_WIDE
from paceline.policy.counts import NUM_PLACES, UNKNOWN
from paceline.policy.output_lengths import NUM_KEPT as NUM_LENGTHS
from paceline.policy.replay import MAX_LENGTH, NUM_BORROWED, NUM_KEPT
from paceline.policy.states import PauseReason
from paceline.records import Verification

SCHEMA = 1
MOST_ROUTES = 4096
LASTING = (PauseReason.ACCEPTANCE, PauseReason.SHORT_OUTPUTS)
"""Reasons to pause that lie in the traffic; load and memory are of the moment."""

_Count = Annotated[float, Field(ge=0.0, le=1e9)]
_Counts = Annotated[list[_Count], Field(min_length=NUM_PLACES, max_length=NUM_PLACES)]
_Bins = Annotated[list[Annotated[int, Field(ge=0, le=UNKNOWN)]], Field(max_length=MAX_LENGTH)]
_Name = Annotated[str, Field(max_length=256)]


class _Saved(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SavedDraft(_Saved):
    """One of the latest drafts."""

    bins: _Bins
    was_cut: bool = False
    """Whether it was as long as was asked for."""


class SavedCounts(_Saved):
    """Verified and accepted tokens by position group and bin, row by row."""

    verified: _Counts
    accepted: _Counts

    @model_validator(mode="after")
    def _no_more_than_verified(self) -> Self:
        if any(a > n * (1 + 1e-9) for a, n in zip(self.accepted, self.verified, strict=True)):
            raise ValueError("more tokens were accepted than verified")
        return self


class SavedPool(_Saved):
    """What all routes know together of one source of drafts."""

    counts: SavedCounts
    drafts: Annotated[list[SavedDraft], Field(max_length=NUM_BORROWED)]


class SavedSource(_Saved):
    """One route with one source of drafts."""

    counts: SavedCounts
    theta: Annotated[float, Field(ge=-MOST_THETA, le=MOST_THETA)]
    theta_variance: Annotated[float, Field(gt=0.0, le=THETA_WIDE)]
    drafts: Annotated[list[SavedDraft], Field(max_length=NUM_KEPT)]
    """The oldest first."""


class SavedRoute(_Saved):
    """One route."""

    verification: Verification
    """How its drafts were judged; figures of one way are not those of the other."""
    paused: Literal[PauseReason.ACCEPTANCE, PauseReason.SHORT_OUTPUTS] | None = None
    sentence: Annotated[str, Field(max_length=1000)] = ""
    """Why it was paused, in the policy's words."""
    credit_s: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0
    """Seconds that its probes may lose."""
    output_lengths: Annotated[list[Annotated[int, Field(ge=0, le=1 << 30)]], Field(max_length=NUM_LENGTHS)]
    sources: dict[_Name, SavedSource]


class History(_Saved):
    """All routes and all sources, at one moment."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    version: Literal[1] = Field(1, alias="schema")
    routes: Annotated[dict[_Name, SavedRoute], Field(max_length=MOST_ROUTES)]
    pools: Annotated[dict[_Name, SavedPool], Field(max_length=MOST_ROUTES)]

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> Self:
        """Return the history of plain values.

        Raises:
            ConfigError: they are none, are damaged, or are of another version of this form.
        """
        found = value.get("schema") if isinstance(value, Mapping) else type(value).__name__
        if found != SCHEMA:
            raise _refusal(f"schema {found!r}", f"schema {SCHEMA}")
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "values"
            raise _refusal(f"{where} = {first['input']!r:.60}", first["msg"]) from None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, with the version of this form."""
        return self.model_dump(mode="json", by_alias=True)


def _refusal(given: str, expected: str) -> ConfigError:
    return ConfigError(
        given=f"an acceptance history with {given}",
        expected=expected,
        remedy="Delete it; the policy begins without one and learns anew",
    )
