"""With or without speculation, as the modes of a measurement are written: "off", "auto", "on:3",
"on:5:suffix"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.records import SpeculationParams

MOST_DRAFTS = 64


@dataclass(frozen=True, slots=True)
class Mode:
    """Speculation off, on with so many drafts from one drafter, or left to the policy."""

    draft_length: int = 0
    drafter: str | None = None
    label: str = "off"
    is_auto: bool = False
    """Whether the policy chooses draft lengths, and drafters unless one is named."""

    @property
    def is_off(self) -> bool:
        """Whether nothing is drafted."""
        return self.draft_length == 0 and not self.is_auto

    @property
    def speculation(self) -> SpeculationParams:
        """What requests are submitted with."""
        if self.is_off:
            return SpeculationParams(enabled=False)
        if self.is_auto:
            return SpeculationParams(enabled="auto", drafter=self.drafter)
        return SpeculationParams(drafter=self.drafter, draft_length=self.draft_length)


def parse_modes(text: str, drafters: Sequence[str], default: str | None) -> tuple[Mode, ...]:
    """Return the modes of a list such as "off,auto,on:3,on:5:suffix".

    Args:
        text: modes with commas between them.
        drafters: the drafters that there are.
        default: the one of `on:K`; none where each mode has to name its own.

    Raises:
        ConfigError: a mode is spelt wrong, has a draft length out of range or no drafter, or comes twice.
    """
    modes = tuple(_parse_mode(word.strip(), drafters, default) for word in text.split(","))
    if len({(mode.draft_length, mode.drafter, mode.is_auto) for mode in modes}) < len(modes):
        raise _refuse_mode(text, "each mode once")
    return modes


def _parse_mode(word: str, drafters: Sequence[str], default: str | None) -> Mode:
    if word == "off":
        return Mode()
    if word == "auto":
        return Mode(label=word, is_auto=True)
    if word.startswith("auto:") and word[5:] in drafters:
        return Mode(0, word[5:], word, is_auto=True)
    head, _, rest = word.partition(":")
    length, _, name = rest.partition(":")
    if head != "on" or not length.isdecimal() or not 1 <= int(length) <= MOST_DRAFTS or word.endswith(":"):
        raise _refuse_mode(word, "off, auto, auto:DRAFTER, on:K or on:K:DRAFTER with K from 1 to 64")
    drafter = name or default
    if drafter is None:
        raise _refuse_mode(word, "a draft model for on:K; without one, name a drafter")
    if drafter not in drafters:
        raise _refuse_mode(word, "a drafter that is there: " + ", ".join(drafters))
    return Mode(int(length), drafter, word)


def _refuse_mode(given: str, expected: str) -> ConfigError:
    return ConfigError(
        given=f"--speculation {given}",
        expected=expected,
        remedy="Write --speculation off,auto,on:3,on:5:suffix, with --draft MODEL where the model drafts",
    )
