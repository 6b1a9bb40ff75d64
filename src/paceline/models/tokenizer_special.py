"""Which tokens begin and end a text."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from paceline.models.tokenizer_tokens import TokenTable, TokenType

logger = logging.getLogger(__name__)

END_STRINGS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
        "<|end_of_turn|>",
        "<|endofturn|>",
    }
)
"""Tokens that end a turn or a text wherever a vocabulary has them as control tokens: many files name only one
of the two that their model uses."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The tokens that a file names for the ends of texts; none where it names none."""

    bos_id: int | None = None
    """Begins a text."""
    eos_id: int | None = None
    """Ends a text."""
    end_ids: frozenset[int] = frozenset()
    """Every token that ends an answer: end of text, end of turn, end of message."""
    prefix_ids: tuple[int, ...] = ()
    """What an encoded text begins with where special tokens are added."""
    suffix_ids: tuple[int, ...] = ()
    """What it ends with."""


def end_string_ids(table: TokenTable) -> set[int]:
    """Return the control tokens whose string is one of `END_STRINGS`."""
    control = table.ids_of(TokenType.CONTROL)
    return {control[string] for string in END_STRINGS & control.keys()}


def warn_without_end(place: str) -> None:
    """Log that a model names no end of text."""
    logger.warning(
        "the model names no end-of-text token in %s; answers end at an end-of-turn token, "
        "if it has one, at a stop string or at max_tokens",
        place,
    )
