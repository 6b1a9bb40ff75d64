"""SentencePiece's rule on toy vocabularies, and against a plain reading of it on random ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import ModelFileError
from paceline.models.tokenizer import Tokenizer
from tests.models.vocabularies import sentencepiece, strings_of


def tokens(keys: dict[str, object], text: str, **options: bool) -> list[str]:
    tokenizer = Tokenizer.from_gguf(keys)
    return strings_of(tokenizer, tokenizer.encode(text, **options))


def test_best_score_is_joined_first() -> None:
    scored = {"a": 0.0, "b": 0.0, "c": 0.0, "ab": -2.0, "bc": -1.0}
    assert tokens(sentencepiece(scored, add_space_prefix=False), "abc") == ["a", "bc"]


def test_equal_scores_join_from_the_left() -> None:
    scored = {"a": 0.0, "aa": -1.0}
    assert tokens(sentencepiece(scored, add_space_prefix=False), "aaa") == ["aa", "a"]


def test_what_is_no_token_is_spelled_in_bytes() -> None:
    assert tokens(sentencepiece({"a": 0.0}, add_space_prefix=False), "aé") == ["a", "<0xC3>", "<0xA9>"]


def test_space_goes_before_the_text_and_after_special_tokens() -> None:
    keys = sentencepiece({"▁": 0.0, "a": 0.0, "▁a": -1.0})
    assert tokens(keys, "a</s>a", parse_special=True) == ["▁a", "</s>", "▁a"]
    assert tokens(keys | {"tokenizer.ggml.add_space_prefix": False}, "a a") == ["a", "▁a"]


def test_bos_is_added_by_default_where_the_file_has_one() -> None:
    assert tokens(sentencepiece({"▁a": 0.0, "a": 0.0, "▁": 0.0}), "a", add_special=True) == ["<s>", "▁a"]
    assert tokens(
        sentencepiece({"▁a": 0.0, "a": 0.0, "▁": 0.0}, bos_token_id=None), "a", add_special=True
    ) == ["▁a"]


def test_typed_control_token_is_never_joined_from_its_characters() -> None:
    scored = {"<": 0.0, "s": 0.0, ">": 0.0, "<s": -1.0}
    assert tokens(sentencepiece(scored, add_space_prefix=False), "<s>") == ["<s", ">"]


def test_user_defined_end_tag_is_text_for_users_but_keeps_its_bytes() -> None:
    keys = sentencepiece({"a": 0.0}, user_defined=["<b>", "</b>"], add_space_prefix=False)
    keys["tokenizer.ggml.tokens"][2:3] = ["<eos>"]
    keys["tokenizer.ggml.tokens"][260] = "</s>"
    tokenizer = Tokenizer.from_gguf(keys)
    assert strings_of(tokenizer, tokenizer.encode("<b>")) == ["<b>"]
    assert 260 not in tokenizer.encode("</s>")
    assert tokenizer.encode("</s>", parse_special=True) == [260]
    assert tokenizer.token_bytes(260) == b"</s>"
    assert 260 not in tokenizer.eos_ids


def test_bytes_of_tokens() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece({"▁a": 0.0}, user_defined=["▁x"]))
    assert [tokenizer.token_bytes(i) for i in (0, 1, 2, 13, 259, 260)] == [
        b"",
        b"",
        b"",
        b"\n",
        "▁x".encode(),
        b" a",
    ]


def test_leading_space_of_a_continuation_is_kept() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece({"▁a": 0.0}))
    assert tokenizer.decode([tokenizer.token_id("▁a")]) == " a"


def test_vocabulary_that_cannot_spell_a_byte_needs_an_unknown_token() -> None:
    keys = sentencepiece({"a": 0.0}, add_space_prefix=False)
    keys["tokenizer.ggml.token_type"][3 + 0x41] = 5
    assert tokens(keys, "A") == ["<unk>"]
    del keys["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(ModelFileError, match="no token for byte 0x41 and no unknown token"):
        Tokenizer.from_gguf(keys)


def joined_by_the_book(text: str, scores: dict[str, float]) -> list[str]:
    """The rule read literally: look at all neighbours each time, join the best, leftmost first."""
    symbols = list(text)
    while True:
        pairs = [
            (-scores[joined], i)
            for i in range(len(symbols) - 1)
            if (joined := symbols[i] + symbols[i + 1]) in scores
        ]
        if not pairs:
            return symbols
        _, best = min(pairs)
        symbols[best : best + 2] = [symbols[best] + symbols[best + 1]]


@given(
    st.lists(st.text("ab▁", min_size=2, max_size=5), unique=True, max_size=12),
    st.lists(st.integers(-5, 0), min_size=12, max_size=12),
    st.text("ab ", max_size=25),
)
def test_random_vocabularies_follow_the_rule(joins: list[str], ranks: list[int], text: str) -> None:
    scored = {"a": 0.0, "b": 0.0, "▁": 0.0} | dict(zip(joins, map(float, ranks), strict=False))
    found = tokens(sentencepiece(scored, add_space_prefix=False), text)
    assert found == joined_by_the_book(text.replace(" ", "▁"), scored)
