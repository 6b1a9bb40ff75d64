"""Streaming text: whole characters only, no half stop string, and the same text however it is cut."""

from __future__ import annotations

import codecs
import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameterError
from paceline.models.detokenizer import IncrementalDetokenizer
from paceline.models.tokenizer import Tokenizer
from tests.models.vocabularies import byte_level, sentencepiece


def run(
    tokens: Sequence[bytes], stop: Sequence[str] = (), min_tokens: int = 0
) -> tuple[list[str], IncrementalDetokenizer]:
    """Push each token; return the piece of text after each, flush last, and the detokenizer."""
    detokenizer = IncrementalDetokenizer(tokens.__getitem__, stop, min_tokens)
    deltas = [detokenizer.push(index) for index in range(len(tokens))]
    return [*deltas, detokenizer.flush()], detokenizer


def cuts(data: bytes) -> list[list[bytes]]:
    """Return `data` in two tokens, cut at each place, and in one token a byte."""
    return [[data[:i], data[i:]] for i in range(len(data) + 1)] + [[bytes([b]) for b in data]]


# B27: a character over several tokens.


def test_no_delta_has_half_a_character() -> None:
    for tokens in cuts("ď😀é".encode()):
        deltas, detokenizer = run(tokens)
        assert "".join(deltas) == detokenizer.text == "ď😀é"
        assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("num_bytes", [3, 4, 5])
def test_character_cut_off_by_the_end_is_dropped_streamed_or_not(num_bytes: int) -> None:
    data = "ď😀é".encode()[:num_bytes]
    deltas, detokenizer = run([bytes([byte]) for byte in data])
    assert "".join(deltas) == detokenizer.text == "ď"
    assert detokenizer.num_kept_tokens == 2
    tokenizer = Tokenizer.from_gguf(byte_level())
    assert tokenizer.decode(tokenizer.encode("ď😀é")[:num_bytes]) == "ď"


def test_invalid_bytes_become_a_replacement_character_once_that_is_certain() -> None:
    deltas, detokenizer = run([b"a\xe2", b"\x82", b"b"])
    assert deltas == ["a", "", "\ufffdb", ""]
    assert detokenizer.num_kept_tokens == 3


# B28: a stop string over several tokens, and text held back.


def test_stop_string_never_reaches_the_client_in_part() -> None:
    for tokens in cuts(b"A yellow box"):
        deltas, detokenizer = run(tokens, ["low b"])
        assert "".join(deltas) == detokenizer.text == "A yel"
        assert detokenizer.matched_stop == "low b"


def test_text_before_a_stop_in_the_same_token_is_kept() -> None:
    deltas, detokenizer = run([b"?\n"], ["\n"])
    assert deltas == ["?", ""]
    assert detokenizer.matched_stop == "\n"


def test_held_text_that_is_no_stop_comes_out() -> None:
    deltas, detokenizer = run([b"a l", b"ow", b" x", b" low"], ["low b"])
    assert deltas == ["a ", "", "low x", " ", "low"]
    assert detokenizer.matched_stop is None


# B9: a stop string anywhere in a long run of accepted tokens.


@pytest.mark.parametrize("start", range(17))
def test_stop_string_is_found_at_any_token_of_a_block(start: int) -> None:
    tokens = [b"x"] * start + [b"E", b"ND", b"```\n"] + [b"y"] * 16
    deltas, detokenizer = run(tokens, ["END"])
    assert "".join(deltas) == detokenizer.text == "x" * start
    assert detokenizer.matched_stop == "END"
    assert detokenizer.num_kept_tokens == start


def test_stop_string_that_a_token_holds_whole() -> None:
    _, detokenizer = run([b"ab", b"cENDd", b"e"], ["END"])
    assert (detokenizer.text, detokenizer.num_kept_tokens) == ("abc", 2)


def test_tokens_after_a_stop_change_nothing() -> None:
    deltas, detokenizer = run([b"aE", b"b", b"E"], ["E"])
    assert deltas == ["a", "", "", ""]
    assert (detokenizer.text, detokenizer.num_kept_tokens) == ("a", 1)


# Several stop strings.


@pytest.mark.parametrize(
    ("stop", "text", "matched"),
    [
        (["abcde", "bcd"], "a", "bcd"),  # the other began first, but is complete later
        (["cd", "bcd"], "a", "bcd"),  # complete together: the one that began first
        (["e", "bc"], "a", "bc"),
        (["zz", "d"], "abc", "d"),
    ],
)
def test_the_stop_that_is_complete_first_wins(stop: list[str], text: str, matched: str) -> None:
    for tokens in cuts(b"abcdef"):
        _, detokenizer = run(tokens, stop)
        assert (detokenizer.text, detokenizer.matched_stop) == (text, matched)


def test_stop_is_compared_by_characters_not_bytes() -> None:
    # U+0101 is C4 81; U+4101 is E4 84 81: a search in bytes would find parts of one in the other.
    for tokens in cuts("䄁āb".encode()):
        _, detokenizer = run(tokens, ["ā"])
        assert detokenizer.text == "䄁"


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="an empty stop string"):
        IncrementalDetokenizer(lambda _: b"", [""])


# min_tokens.


@pytest.mark.parametrize(("min_tokens", "text"), [(0, ""), (2, ""), (3, "ENDa"), (7, "ENDaENDb")])
def test_stop_complete_before_min_tokens_stays_in_the_text(min_tokens: int, text: str) -> None:
    tokens = [b"EN", b"D", b"a", b"EN", b"D", b"b"]
    deltas, detokenizer = run(tokens, ["END"], min_tokens)
    assert "".join(deltas) == detokenizer.text == text


def test_stop_that_overlaps_an_ignored_one_still_counts() -> None:
    _, detokenizer = run([b"a", b"a", b"a"], ["aa"], min_tokens=3)
    assert detokenizer.text == "a"


def test_ignored_stop_inside_held_text_is_not_found_again() -> None:
    deltas, detokenizer = run([b"xab", b"z"], ["ab", "xaby"], min_tokens=2)
    assert deltas == ["", "xabz", ""]
    assert detokenizer.matched_stop is None


def test_ignored_stop_is_not_held_back() -> None:
    deltas, _ = run([b"ab", b"z"], ["ab", "xaby"], min_tokens=3)
    assert deltas == ["ab", "z", ""]


# The rest.


def test_push_after_flush_is_refused() -> None:
    detokenizer = IncrementalDetokenizer(lambda _: b"a")
    detokenizer.push(0)
    detokenizer.flush()
    assert detokenizer.flush() == ""
    with pytest.raises(ValueError, match="token 0 pushed after flush"):
        detokenizer.push(0)


def test_control_tokens_have_no_text_and_are_not_needed() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level())
    detokenizer = IncrementalDetokenizer(tokenizer)
    for token_id in [*tokenizer.encode("hello w"), tokenizer.token_id("<|im_end|>")]:
        detokenizer.push(token_id)
    detokenizer.flush()
    assert (detokenizer.text, detokenizer.num_kept_tokens) == ("hello w", 2)


def test_sentencepiece_keeps_the_space_that_a_continuation_begins_with() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece({"▁a": 0.0}))
    assert IncrementalDetokenizer(tokenizer).push(tokenizer.token_id("▁a")) == " a"


def test_late_tokens_cost_no_more_than_early_ones() -> None:
    detokenizer = IncrementalDetokenizer(lambda _: b"ab ", ["never", "abc"])

    def push(count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            detokenizer.push(0)
        return time.process_time() - start

    early = push(5_000)
    push(100_000)
    assert push(5_000) < 10 * early


PIECE = st.one_of(
    st.binary(max_size=4),
    st.text("abé😀", max_size=3).map(str.encode),
    st.sampled_from([b"\xf0\x9f", b"\x98\x80"]),
)


def stopped_at_once(tokens: Sequence[bytes], stop: Sequence[str], min_tokens: int) -> str:
    """The rule read literally: after each token decode all, and look for stops just complete."""
    before = ""
    for count in range(1, len(tokens) + 1):
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(tokens[:count]))
        ends = [
            (end, end - len(s))
            for s in stop
            for end in range(len(before) + 1, len(text) + 1)
            if text[:end].endswith(s)
        ]
        if ends and count >= min_tokens:
            return text[: min(ends)[1]]
        before = text
    return before


@given(
    st.lists(PIECE, max_size=12),
    st.lists(st.text("abé😀\ufffd", min_size=1, max_size=4), max_size=3),
    st.integers(0, 6),
)
def test_any_tokens_and_stops_give_the_text_of_the_literal_rule(
    tokens: list[bytes], stop: list[str], min_tokens: int
) -> None:
    deltas, detokenizer = run(tokens, stop, min_tokens)
    assert "".join(deltas) == detokenizer.text == stopped_at_once(tokens, stop, min_tokens)
    needed = detokenizer.num_kept_tokens
    assert stopped_at_once(tokens[:needed], (), 0).startswith(detokenizer.text)
    if needed:
        assert len(stopped_at_once(tokens[: needed - 1], (), 0)) < len(detokenizer.text)


@given(
    st.binary(max_size=30),
    st.lists(st.integers(0, 30), max_size=6),
    st.lists(st.text("abé", min_size=1), max_size=2),
)
def test_text_does_not_depend_on_how_it_is_cut(data: bytes, places: list[int], stop: list[str]) -> None:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert run(pieces, stop)[1].text == run([data], stop)[1].text


# Byte tokens of a SentencePiece vocabulary.


def test_byte_tokens_of_sentencepiece_join_to_characters() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece({"▁a": 0.0}))
    detokenizer = IncrementalDetokenizer(tokenizer)
    spelled = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in "😀".encode()]
    assert None not in spelled
    deltas = [detokenizer.push(i) for i in [tokenizer.token_id("▁a"), *spelled, spelled[0]] if i is not None]
    assert deltas == [" a", "", "", "", "😀", ""]
    assert detokenizer.flush() == ""
    assert detokenizer.text == " a😀"
    assert detokenizer.num_kept_tokens == 5


def test_stop_string_that_byte_tokens_complete() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece({"a": 0.0}))
    detokenizer = IncrementalDetokenizer(tokenizer, ["a😀"])
    spelled = [tokenizer.token_id(f"<0x{byte:02X}>") for byte in "😀".encode()]
    deltas = [detokenizer.push(i) for i in [tokenizer.token_id("a"), *spelled] if i is not None]
    assert deltas == [""] * 5
    assert detokenizer.matched_stop == "a😀"
    assert (detokenizer.text, detokenizer.num_kept_tokens) == ("", 0)
