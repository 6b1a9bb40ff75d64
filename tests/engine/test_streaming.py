"""Text as it leaves the engine: whole characters, no half stop string, and what the whole answer says.

`run` itself checks for every request that the chunks add up to the result, in text and in ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.scripted import ScriptedDrafter
from paceline.engine.engine import Engine
from paceline.models.scripted import NextLogits, table_logits
from paceline.records import FinishReason, SamplingParams, SpeculationParams, StreamChunk
from tests.engine.scripted import OFF, drain, make_engine, oracle, outcome, request, run, speculate


def reading(pieces: Sequence[bytes]) -> tuple[list[bytes], NextLogits]:
    """A target that spells these pieces, one a token, after token 0, and then repeats its last one."""
    tokens = [b"<", *pieces]
    chain = {i: i + 1 for i in range(len(pieces))}
    return tokens, table_logits(chain, len(tokens))


def stream(
    pieces: Sequence[bytes], speculation: SpeculationParams = OFF, ends: bool = False, **params: Any
) -> list[StreamChunk]:
    """Stream the pieces as one answer; with `ends`, the last of them is an end token."""
    tokens, logits = reading(pieces)
    eos_ids = frozenset({len(pieces)}) if ends else frozenset()
    engine = make_engine(logits, len(tokens), {"scripted": oracle(logits)}, tokens=tokens, eos_ids=eos_ids)
    engine.submit(request([0], SamplingParams(**{"max_tokens": len(pieces)} | params), speculation))
    return drain(engine)


SPECULATIONS = [OFF, *(speculate(k) for k in range(1, 9))]
TEXT = "ď😀é".encode()


@pytest.mark.parametrize("speculation", SPECULATIONS)
@pytest.mark.parametrize("num_bytes", range(1, 9))
def test_no_chunk_has_half_a_character(speculation: SpeculationParams, num_bytes: int) -> None:
    """B27: blocks that end inside a character at each byte, and answers that do."""
    chunks = stream([bytes([byte]) for byte in TEXT[:num_bytes]], speculation)
    text = "".join(chunk.text for chunk in chunks)
    assert text == TEXT[:num_bytes].decode(errors="ignore")
    assert not any("\ufffd" in chunk.text for chunk in chunks)
    assert chunks[-1].result is not None
    assert chunks[-1].result.text == text
    assert chunks[-1].result.usage.completion_tokens == num_bytes


@pytest.mark.parametrize("speculation", SPECULATIONS)
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_a_stop_string_never_leaves_in_part(speculation: SpeculationParams, width: int) -> None:
    """B28: a stop string over any number of tokens, with block edges everywhere."""
    text = b"A yellow box"
    pieces = [text[i : i + width] for i in range(0, len(text), width)]
    chunks = stream(pieces, speculation, stop="low b", logprobs=0)
    assert "".join(chunk.text for chunk in chunks) == "A yel"
    result = chunks[-1].result
    assert result is not None
    assert result.finish_reason is FinishReason.STOP
    # The fewest tokens whose text covers the answer's.
    assert (
        len(result.token_ids)
        == -(-5 // width)
        == len(result.logprobs or ())
        == result.usage.completion_tokens
    )
    assert sum(len(chunk.token_ids) for chunk in chunks) == len(result.token_ids)


@pytest.mark.parametrize("speculation", SPECULATIONS)
@pytest.mark.parametrize("ends", [True, False])
def test_a_beginning_of_a_stop_string_comes_out_at_the_end(
    speculation: SpeculationParams, ends: bool
) -> None:
    """B28: whether an end token or the cap ends the answer; and text before a stop in the same token."""
    chunks = stream([b"a", b" lo", b"w", b" "], speculation, ends, stop="low b")
    assert "".join(chunk.text for chunk in chunks) == ("a low" if ends else "a low ")
    assert "".join(chunk.text for chunk in stream([b"?\n", b"x"], speculation, stop="\n")) == "?"


@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_exactly_one_chunk_is_the_last(speculation: SpeculationParams) -> None:
    """B29, the engine's half: an answer that is complete in one step, and a longer one."""
    for size in (1, 2, 9):
        chunks = stream([b"ab"] * size, speculation)
        assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert sum(chunk.num_accepted for chunk in chunks) == chunks[-1].result.speculation.num_accepted  # type: ignore[union-attr]


FAMILY = "👩\u200d👩\u200d👧e\u0301🏳\ufe0f\u200d🌈"


@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_joined_characters_come_whole_by_code_point(speculation: SpeculationParams) -> None:
    """What a reader sees as one sign may be several characters; each of them comes whole, and in order."""
    chunks = stream([bytes([byte]) for byte in FAMILY.encode()], speculation)
    assert "".join(chunk.text for chunk in chunks) == FAMILY
    assert not any("\ufffd" in chunk.text for chunk in chunks)
    stopped = stream([bytes([byte]) for byte in FAMILY.encode()], speculation, stop="\u200d👧")
    assert "".join(chunk.text for chunk in stopped) == "👩\u200d👩"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xff", "a\ufffd"),
        (b"a\xc3", "a"),
        (b"a\xe2\x82", "a"),
        (b"a\xe2\x82b", "a\ufffdb"),
        (b"\xf0\x9f\x98\xf0\x9f\x98\x80", "\ufffd😀"),
        (b"\x80\x80", "\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    ],
)
def test_bytes_that_are_no_text(data: bytes, text: str) -> None:
    """U+FFFD as soon as it is certain; bytes that a character may still begin with are dropped at the end."""
    for speculation in SPECULATIONS[:5]:
        chunks = stream([bytes([byte]) for byte in data], speculation)
        assert "".join(chunk.text for chunk in chunks) == text


PIECES = st.one_of(
    st.sampled_from(
        [b"a", b"b", b"ab", b"\xf0\x9f", b"\x98\x80", b"\xc3", b"\xa9", b"", b"\xff", "é".encode()]
    )
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(PIECES, min_size=3, max_size=8),
    st.lists(st.text("abé😀", min_size=1, max_size=3), max_size=3),
    st.integers(0, 6),
    st.integers(0, 2**32 - 1),
    st.integers(1, 7),
)
def test_streams_do_not_hang_on_drafts(
    tokens: list[bytes], stop: list[str], min_tokens: int, seed: int, k: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(len(tokens), len(tokens))).astype(np.float32) * 2

    def logits(token_ids: Sequence[int]) -> np.ndarray:
        return rows[token_ids[-1]]

    def engine(drafters: dict[str, Any]) -> Engine:
        return make_engine(logits, len(tokens), drafters, tokens=tokens, eos_ids=frozenset({0}))

    params = SamplingParams(
        temperature=1.0, max_tokens=16, stop=tuple(stop), min_tokens=min_tokens, logprobs=1
    )
    random = ScriptedDrafter(lambda asked: rng.integers(0, len(tokens), asked.draft_length).tolist())
    (off,) = run(engine({}), request([1], params, seed=seed))
    for drafter in (oracle(logits), random):
        (on,) = run(engine({"scripted": drafter}), request([1], params, speculate(k), seed=seed))
        assert outcome(on) == outcome(off)
        assert on.logprobs == off.logprobs
        assert len(on.logprobs or ()) == len(on.token_ids) == on.usage.completion_tokens
