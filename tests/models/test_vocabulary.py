"""Draft and target must mean the same by each id (B25)."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import VocabularyMismatchError
from paceline.models.tokenizer import Tokenizer
from paceline.models.vocabulary import check_same_vocabulary
from tests.models.vocabularies import byte_level

TARGET = Tokenizer.from_gguf(byte_level(num_padding=2))


def swapped(first: int, second: int) -> dict[str, Any]:
    keys = byte_level()
    strings = keys["tokenizer.ggml.tokens"]
    strings[first], strings[second] = strings[second], strings[first]
    return keys


def test_swapped_tokens_are_named() -> None:
    draft = Tokenizer.from_gguf(swapped(5, 6))
    with pytest.raises(VocabularyMismatchError, match="token 5 is '&' in the target and \"'\" in the draft"):
        check_same_vocabulary(TARGET, draft)


def test_other_end_token_is_named() -> None:
    draft = Tokenizer.from_gguf(byte_level(eos_token_id=264))
    with pytest.raises(
        VocabularyMismatchError,
        match=r"token 264 \('<\|im_start\|>'\) ends an answer in the draft model and not in the target",
    ):
        check_same_vocabulary(TARGET, draft)


def test_number_of_padding_rows_may_differ() -> None:
    check_same_vocabulary(TARGET, Tokenizer.from_gguf(byte_level(num_padding=70)))
    check_same_vocabulary(TARGET, Tokenizer.from_gguf(byte_level()))


@pytest.mark.parametrize("is_draft_larger", [True, False])
def test_token_that_only_one_has_is_named(is_draft_larger: bool) -> None:
    larger = Tokenizer.from_gguf(byte_level(user_defined=["<tool>"]))
    pair = (TARGET, larger) if is_draft_larger else (larger, TARGET)
    names = ("no token", "'<tool>'") if is_draft_larger else ("'<tool>'", "no token")
    with pytest.raises(
        VocabularyMismatchError, match=f"token 266 is {names[0]} in the target and {names[1]}"
    ):
        check_same_vocabulary(*pair)
