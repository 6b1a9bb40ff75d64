"""How each pre-tokenizer cuts text, worked out by hand from its pattern."""

from __future__ import annotations

import logging

import pytest
import tokenizers
from tokenizers import pre_tokenizers

from paceline.models.tokenizer import Tokenizer
from paceline.models.tokenizer_bpe import PRE_TOKENIZERS
from tests.models.vocabularies import byte_level, strings_of

TEXT = "I'LL do 12345  it!\n\n x=(1.5)"


def cut(name: str, text: str) -> list[str]:
    rules = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in PRE_TOKENIZERS[name].patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(rules).pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("qwen2", "I|'LL| do| |1|2|3|4|5| | it|!\n\n| x|=(|1|.|5|)"),
        ("llama-bpe", "I|'LL| do| |123|45| | it|!\n\n| x|=(|1|.|5|)"),
        ("smollm", "I|'|LL| do| |1|2|3|4|5| | it|!|\n\n| x|=(|1|.|5|)"),
        ("gpt-2", "I|'|LL| do| 12345| | it|!|\n\n| x|=(|1|.|5|)"),
        ("default", "I|'|LL| do| |123|45| | it|!|\n\n| x|=(|1|.|5|)"),
        ("tekken", "I|'LL| do| |1|2|3|4|5| | it|!\n\n| x|=(|1|.|5|)"),
    ],
)
def test_pieces(name: str, pieces: str) -> None:
    assert cut(name, TEXT) == pieces.split("|")


def test_long_s_is_no_contraction() -> None:
    assert cut("qwen2", "a'\u017fb") == ["a", "'\u017fb"]


def test_case_changes_cut_words_in_tekken_only() -> None:
    assert cut("tekken", "parseHTML") == ["parse", "HTML"]
    assert cut("qwen2", "parseHTML") == ["parseHTML"]


def test_whole_words_are_taken_as_they_are_only_where_the_rule_says() -> None:
    merges = ["h e", "l l", "he ll", "Ġ w", "1 2", "12 3"]  # none makes "hello"
    by_rank, whole = (
        Tokenizer.from_gguf(byte_level(pre=pre, merges=merges)) for pre in ("qwen2", "llama-bpe")
    )
    assert strings_of(by_rank, by_rank.encode("hello")) == ["hell", "o"]
    assert strings_of(whole, whole.encode("hello")) == ["hello"]


def test_llama3_files_without_the_key_begin_with_bos() -> None:
    assert Tokenizer.from_gguf(byte_level(pre="llama-bpe", add_bos_token=None)).add_bos
    assert not Tokenizer.from_gguf(byte_level(pre="qwen2", add_bos_token=None)).add_bos


def test_bytes_without_a_token_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    keys = byte_level()
    keys["tokenizer.ggml.tokens"][keys["tokenizer.ggml.tokens"].index("Ą")] = "zz"  # Ą spells byte 0x04
    tokenizer = Tokenizer.from_gguf(keys)
    with caplog.at_level(logging.WARNING):
        assert strings_of(tokenizer, tokenizer.encode("he\x04ll")) == ["he", "ll"]
    assert "cannot spell" in caplog.text
