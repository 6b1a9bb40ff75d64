"""What a route may be served with, as it is written: "off", "auto", "model:4", "mixed:3@small"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from paceline.measure.load_mode import Mode

MODEL, SUFFIX, MIXED, AUTO, OFF = "model", "suffix", "mixed", "auto", "off"
_DRAFTERS = {MODEL: (MODEL,), SUFFIX: (SUFFIX,), MIXED: (SUFFIX, MODEL), AUTO: (SUFFIX, MODEL)}


@dataclass(frozen=True, slots=True)
class Setting:
    """Drafters with a fixed draft length, or with one that the policy chooses, or nothing."""

    drafters: tuple[str, ...] = ()
    """Of "suffix" and "model"; none is off."""
    draft_length: int | None = None
    """Fixed k; none leaves it to the policy."""
    draft: str | None = None
    """Which draft model, where it has a name."""

    @property
    def is_off(self) -> bool:
        """Whether nothing is drafted."""
        return not self.drafters

    @property
    def is_auto(self) -> bool:
        """Whether the policy chooses."""
        return bool(self.drafters) and self.draft_length is None

    @property
    def needs_model(self) -> bool:
        """Whether a draft model takes part."""
        return MODEL in self.drafters

    @property
    def drafter(self) -> str:
        """The engine's name for its drafters together; "off" where there are none."""
        if self.is_off:
            return OFF
        return MIXED if len(self.drafters) > 1 else self.drafters[0]

    @property
    def label(self) -> str:
        """How it is written."""
        if self.is_off:
            return OFF
        name = f"@{self.draft}" if self.draft is not None and self.needs_model else ""
        if self.is_auto:
            return AUTO + ("" if len(self.drafters) > 1 else f":{self.drafter}") + name
        return f"{self.drafter}:{self.draft_length}{name}"

    @property
    def mode(self) -> Mode:
        """How an engine with that draft model is asked for it."""
        if self.is_off:
            return Mode()
        if self.is_auto:
            return Mode(0, None if len(self.drafters) > 1 else self.drafter, self.label, is_auto=True)
        return Mode(self.draft_length or 0, self.drafter, self.label)

    @classmethod
    def parse(cls, label: str) -> Self:
        """Return the setting that a label, as `label` writes it, means."""
        text, _, draft = label.partition("@")
        head, _, rest = text.partition(":")
        if head == OFF:
            return cls()
        if head == AUTO:
            return cls(_DRAFTERS[rest or AUTO], None, draft or None)
        return cls(_DRAFTERS[head], int(rest), draft or None)

    def route(self, max_draft_length: int) -> dict[str, Any]:
        """Return the keys of a route that is served so."""
        if self.is_off:
            return {"speculation": "off"}
        names = [f"{MODEL}:{self.draft}" if name == MODEL and self.draft else name for name in self.drafters]
        if self.is_auto:
            return {"speculation": "auto", "drafters": names, "max_draft_length": max_draft_length}
        return {"speculation": "on", "drafters": names, "draft_length": self.draft_length}
