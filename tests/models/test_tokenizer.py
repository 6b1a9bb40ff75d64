"""The tokenizer on toy vocabularies: what tokens are, which are special, what a damaged file says."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameterError, ModelFileError, UnsupportedModelError
from paceline.models.tokenizer import Tokenizer
from tests.models.vocabularies import byte_level, sentencepiece, strings_of

TOKENIZER = Tokenizer.from_gguf(byte_level(user_defined=["<tool>", "<tool>s"], num_padding=3))
IM_START, IM_END, END = (TOKENIZER.token_id(s) for s in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))


def test_text_becomes_tokens_by_rank_of_merges() -> None:
    assert strings_of(TOKENIZER, TOKENIZER.encode("hello w")) == ["hello", "Ġw"]


def test_typed_control_tokens_stay_text_unless_asked() -> None:
    text = "<|im_start|>he<|im_end|>"
    typed = TOKENIZER.encode(text)
    assert not set(typed) & set(TOKENIZER.special_tokens.values())
    assert TOKENIZER.decode(typed) == text
    assert TOKENIZER.encode(text, parse_special=True) == [IM_START, TOKENIZER.token_id("he"), IM_END]


def test_user_defined_tokens_are_found_in_any_text_the_longest_first() -> None:
    assert strings_of(TOKENIZER, TOKENIZER.encode("<tool>s<tool>")) == ["<tool>s", "<tool>"]


def test_bytes_of_each_kind_of_token() -> None:
    assert TOKENIZER.token_bytes(TOKENIZER.token_id("Ġw")) == b" w"
    assert TOKENIZER.token_bytes(TOKENIZER.token_id("<tool>")) == b"<tool>"
    assert TOKENIZER.token_bytes(IM_END) == b""
    assert TOKENIZER.token_bytes(TOKENIZER.vocab_size - 1) == b""


def test_padding_rows_are_not_real_tokens() -> None:
    assert (TOKENIZER.num_real_tokens, TOKENIZER.vocab_size) == (268, 271)


def test_every_end_token_ends_an_answer() -> None:
    assert TOKENIZER.eos_id == IM_END
    assert TOKENIZER.eos_ids == {IM_END, END}


def test_decode_drops_a_character_cut_off_and_marks_invalid_bytes() -> None:
    ids = TOKENIZER.encode("a😀")
    assert TOKENIZER.decode(ids[:-1]) == "a"
    assert TOKENIZER.decode([ids[-1], *TOKENIZER.encode("b")]) == "\ufffdb"


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("token_id", [-1, 271])
def test_unknown_token_id_is_named(token_id: int) -> None:
    with pytest.raises(InvalidParameterError, match=f"token id {token_id}; expected an id from 0 to 270"):
        TOKENIZER.token_bytes(token_id)


def test_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidParameterError, match=r"U\+D800, at character 2"):
        TOKENIZER.encode("ab\ud800")


def test_threads_get_the_same_tokens() -> None:
    texts = ["hello <|im_end|>", "hello w"] * 50
    with ThreadPoolExecutor(4) as pool:
        both = list(pool.map(lambda text: TOKENIZER.encode(text, parse_special="w" in text), texts))
    assert both[0::2] == [both[0]] * 50
    assert both[1::2] == [both[1]] * 50


# B56: an absent key means none, and nothing is assumed in its place.


def test_without_bos_key_no_bos_is_added() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(bos_token_id=None, add_bos_token=True))
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    assert strings_of(tokenizer, tokenizer.encode("hello", add_special=True)) == ["hello"]


def test_without_any_of_the_keys_nothing_is_added_or_ended_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = byte_level(control=(), bos_token_id=None, eos_token_id=None, add_bos_token=None)
    with caplog.at_level(logging.WARNING):
        tokenizer = Tokenizer.from_gguf(keys)
    assert "no end-of-text token" in caplog.text
    assert tokenizer.eos_ids == frozenset()
    assert strings_of(tokenizer, tokenizer.encode("hello", add_special=True)) == ["hello"]


def test_end_of_turn_ends_where_eos_is_another_token() -> None:
    keys = byte_level(control=("<|endoftext|>", "<end>", "<turn>"))
    end, turn = (keys["tokenizer.ggml.tokens"].index(s) for s in ("<end>", "<turn>"))
    tokenizer = Tokenizer.from_gguf(
        keys | {"tokenizer.ggml.eos_token_id": end, "tokenizer.ggml.eot_token_id": turn}
    )
    assert tokenizer.eos_ids == {end, turn, tokenizer.token_id("<|endoftext|>")}


def test_end_of_turn_string_that_is_an_ordinary_token_ends_nothing() -> None:
    keys = byte_level()
    keys["tokenizer.ggml.token_type"][keys["tokenizer.ggml.tokens"].index("<|endoftext|>")] = 1
    tokenizer = Tokenizer.from_gguf(keys)
    assert tokenizer.eos_ids == {tokenizer.token_id("<|im_end|>")}


def test_user_defined_end_token_cannot_be_typed() -> None:
    keys = byte_level(user_defined=["<|eot_id|>"])
    tokenizer = Tokenizer.from_gguf(keys)
    assert tokenizer.token_id("<|eot_id|>") in tokenizer.eos_ids
    assert tokenizer.token_id("<|eot_id|>") not in tokenizer.encode("<|eot_id|>")


def test_bos_and_eos_are_added_where_the_file_says() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level(add_bos_token=True, add_eos_token=True))
    ids = tokenizer.encode("hello", add_special=True)
    assert strings_of(tokenizer, ids) == ["<|endoftext|>", "hello", "<|im_end|>"]


@pytest.mark.parametrize(
    ("keys", "error", "text"),
    [
        ({}, ModelFileError, "tokenizer.ggml.model is absent"),
        (byte_level(model="t5"), UnsupportedModelError, "tokenizer kind 't5'"),
        (byte_level(tokens=None), ModelFileError, "tokenizer.ggml.tokens is absent"),
        (byte_level(token_type=[1]), ModelFileError, "token_type has 1 entries; expected 266 int entries"),
        (byte_level(merges=None), ModelFileError, "tokenizer.ggml.merges is absent"),
        (byte_level(merges=["h zz"]), ModelFileError, "merges that the vocabulary does not carry"),
        (byte_level(pre="martian"), UnsupportedModelError, r"pre-tokenizer 'martian'.*qwen2.*wrong tokens"),
        (byte_level(pre=None), UnsupportedModelError, "no tokenizer.ggml.pre in the file"),
        (byte_level(bos_token_id=266), ModelFileError, "bos_token_id = 266; expected an id below the 266"),
        (sentencepiece({"a": 0.0}, scores=None), ModelFileError, "tokenizer.ggml.scores is absent"),
    ],
)
def test_file_that_cannot_be_used_says_why(keys: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Tokenizer.from_gguf(keys)
