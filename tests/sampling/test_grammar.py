"""Structured output: the tokens that may come are those with which the text can still be completed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import GenerationError, InvalidParameterError
from paceline.parameters import StructuredOutput
from paceline.records import SamplingParams
from paceline.sampling.choice import choose, choose_with_confidence
from paceline.sampling.grammar import MAX_CACHED, GrammarCompiler, _Vocabulary
from paceline.sampling.grammar_state import GrammarState
from paceline.sampling.processors import process
from paceline.sampling.state import SamplingState

TOKENS = [bytes([byte]) for byte in range(256)]
TOKENS += [b'{"', b'":', b"12", b"123", b"yes", "😀".encode(), b"\xf0\x9f", b""]
END = len(TOKENS) - 1
COMPILER = GrammarCompiler(TOKENS.__getitem__, len(TOKENS))


def start(end: Sequence[int] = (END,), **form: Any) -> GrammarState:
    return COMPILER.compile(StructuredOutput(**form)).start(end)


def ids(text: str) -> list[int]:
    return list(text.encode())


def spelled(mask: np.ndarray) -> set[bytes]:
    return {TOKENS[i] or b"<end>" for i in np.flatnonzero(mask)}


def test_a_token_may_come_when_the_text_can_still_be_completed() -> None:
    state = start(regex="[0-9]{3}|yes")
    digits = {bytes([c]) for c in b"0123456789"}
    assert spelled(state.allowed()) == digits | {b"12", b"123", b"yes", b"y"}
    state.append(ids("1"))
    assert spelled(state.allowed()) == digits | {b"12"}
    state.append(ids("23"))
    assert state.is_complete
    assert spelled(state.allowed()) == {b"<end>"}


def test_an_end_token_may_come_exactly_when_the_text_is_whole() -> None:
    state = start(end=(END, 10), json_schema={"type": "integer"})
    assert not state.allowed()[[END, 10]].any()
    state.append(ids("7"))
    assert state.allowed()[[END, 10]].all()
    assert not state.is_complete
    state.append([END])
    assert state.allowed()[END]


def test_without_an_end_token_a_whole_text_cannot_go_on() -> None:
    state = start(end=(), choice=("yes", "no"))
    state.append(ids("no"))
    with pytest.raises(GenerationError, match="cannot go on"):
        state.allowed()


def test_looking_ahead_leaves_no_trace() -> None:
    """B22: drafts that fall do not move the matcher."""
    state = start(regex="[0-9]{3}")
    before = state.allowed().copy()
    assert state.allowed(ids("12")).any()
    with pytest.raises(GenerationError, match="drafts leave"):
        state.allowed(ids("ab"))
    assert state.num_admissible(ids("1a2")) == 1
    assert (state.allowed() == before).all()


@pytest.mark.parametrize(
    ("drafts", "count"),
    [("abc", 0), ("12", 2), ("123", 2), ("1234", 2), ("1x3", 1), ("", 0)],
)
def test_drafts_are_cut_at_the_first_that_is_forbidden_or_needless(drafts: str, count: int) -> None:
    """B22, B23: nothing is drafted behind the end, nor the token that completes the form."""
    assert start(regex="[0-9]{3}").num_admissible(ids(drafts)) == count


def test_end_tokens_and_unknown_ids_are_never_admissible() -> None:
    state = start(json_schema={"type": "integer"})
    assert state.num_admissible([*ids("1"), END, *ids("2")]) == 1
    assert state.num_admissible([-1]) == state.num_admissible([10**9]) == 0


FORMS: list[dict[str, Any]] = [
    {"json_object": True},
    {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"regex": "(ab|a)*c{2,5}😀?"},
    {"choice": ("yes", "yesterday", "12")},
]


@given(st.sampled_from(FORMS), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**6)), max_size=12))
def test_masks_depend_on_the_text_alone(form: dict[str, Any], moves: list[tuple[int, int]]) -> None:
    """Whatever was looked at in between: equal to a fresh state that was given the same tokens."""
    state, taken = start(**form), list[int]()
    for num_ahead, choice in moves:
        drafts: list[int] = []
        for offset in range(num_ahead):
            options = np.flatnonzero(state.allowed(drafts))
            drafts.append(int(options[(choice + offset) % len(options)]))
            if drafts[-1] == END:
                drafts.pop()
                break
        fresh = start(**form)
        fresh.append(taken)
        mask = fresh.allowed()
        assert (state.allowed() == mask).all()
        assert state.is_complete == fresh.is_complete
        options = [i for i in np.flatnonzero(mask).tolist() if i != END]
        if not options:
            break
        token_id = drafts[0] if drafts and choice % 2 else options[choice % len(options)]
        state.append([token_id])
        taken.append(token_id)


def sampling(form: StructuredOutput | None, **params: Any) -> SamplingState:
    grammar = None if form is None else COMPILER.compile(form)
    asked = SamplingParams(structured_output=form, **params)
    return SamplingState(asked, 5, (), (END,), len(TOKENS), grammar=grammar)


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.8}, {"temperature": 1.5, "top_p": 0.7, "min_p": 0.02}]
)
@pytest.mark.parametrize("more", [{}, {"frequency_penalty": 0.5}, {"logit_bias": {49: 2.0}}])
def test_a_masked_choice_is_the_choice_among_logits_of_minus_infinity(
    params: dict[str, float], more: Any
) -> None:
    """Noise of the other tokens stays what it is; the native and the general path agree."""
    rng = np.random.default_rng(3)
    masked = sampling(StructuredOutput(regex="[0-9a-f]+"), **params, **more)
    free = sampling(None, **params, **more)
    for index in range(40):
        logits = rng.normal(size=len(TOKENS)).astype(np.float32) * 3
        allowed = masked.allowed()
        assert allowed is not None
        expected = choose(np.where(allowed, logits, -np.inf).astype(np.float32), free)
        assert choose(logits, masked) == expected
        assert expected in process(logits, masked).token_ids
        token_id, confidence = choose_with_confidence(logits, masked)
        assert token_id == expected
        assert 0.0 < confidence <= 1.0
        if index and expected != END:
            masked.append([expected])
            free.append([expected])


def test_confidence_counts_only_what_may_come() -> None:
    state = sampling(StructuredOutput(choice=("y",)))
    logits = np.zeros(len(TOKENS), dtype=np.float32)
    assert choose_with_confidence(logits, state) == (ord("y"), 1.0)


def test_a_matcher_that_fails_along_drafts_does_not_hurt_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    state = start(regex="[0-9]{3}")
    state.append(ids("1"))
    monkeypatch.setattr(state, "_matcher", _Failing(state._matcher))
    with pytest.raises(GenerationError, match="drafts leave"):
        state.allowed(ids("2"))
    assert state.allowed()[ord("2")]
    monkeypatch.setattr(state, "_matcher", _Failing(state._matcher))
    state._positions[0].mask = None
    assert state.allowed()[ord("2")]


class _Failing:
    """A matcher that went into its error state, which it never leaves."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def try_consume_tokens(self, token_ids: list[int]) -> int:
        return 0

    def is_error(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


DEEP: Any = {}
for _ in range(3000):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"regex": "[0-9"}, "structured_output.regex that cannot be used.*unclosed character class"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "()"}, "no text of this form but"),
        ({"json_schema": {"type": "nope"}}, "structured_output.json_schema.*Invalid type: nope"),
        ({"json_schema": {"not": {"type": "string"}}}, 'Unimplemented keys: \\["not"\\]'),
        ({"json_schema": {"$ref": "#/nowhere"}}, "does not exist"),
        ({"json_schema": {"type": float("nan")}}, "json_schema"),
        ({"json_schema": {"enum": [b"bytes"]}}, "json_schema"),
        ({"json_schema": DEEP}, "recursion"),
    ],
)
def test_what_no_answer_can_be_held_to_is_refused(form: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        start(**form)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"regex": "a", "choice": ("b",)},
        {"json_object": True, "json_schema": {}},
        {"regex": ""},
        {"regex": "a\\"},
        {"choice": ("a", "")},
        {"json_schema": "{"},
        {"json_schema": "3"},
        {"json_schema": [1]},
        {"grammar": "start: /a/"},
    ],
)
def test_a_form_is_exactly_one_thing(form: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError):
        StructuredOutput(**form)


def test_a_schema_may_come_as_text() -> None:
    schema = {"type": "integer"}
    assert StructuredOutput(json_schema=json.dumps(schema)) == StructuredOutput(json_schema=schema)


@pytest.mark.parametrize("text", ["a/b", 'say "x"', "back\\slash", "é😀", "a\tb\n", "[0-9]+", "a|b", "\x00"])
def test_a_choice_is_taken_to_the_letter(text: str) -> None:
    state = start(choice=(text, "other"))
    state.append(ids(text))
    assert state.is_complete


def test_where_no_token_can_spell_what_must_follow_that_is_said() -> None:
    ascii_only = GrammarCompiler(lambda i: b"\xf0\x9f" if i == 128 else bytes([i]), 129)
    state = ascii_only.compile(StructuredOutput(choice=("😀",))).start(())
    state.append([128])
    with pytest.raises(GenerationError, match="no token goes on, or the grammar has become too complex"):
        state.allowed()


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        ("a/b\nc", "a/b\nc"),
        (r"a\/b", "a/b"),
        (r"a\\/", "a\\/"),
        ("[/]#%x", "/#%x"),
        ('/|"x"\nb:y', '"x"\nb:y'),
    ],
)
def test_nothing_in_an_expression_is_taken_for_syntax_around_it(regex: str, text: str) -> None:
    assert re.fullmatch(regex, text)
    state = start(regex=regex)
    state.append(ids(text))
    assert state.allowed()[END]


def test_compiled_forms_are_kept_but_not_without_end() -> None:
    compiler = GrammarCompiler(TOKENS.__getitem__, len(TOKENS))
    first = compiler.compile(StructuredOutput(regex="a"))
    assert compiler.compile(StructuredOutput(regex="a")) is first
    for number in range(MAX_CACHED + 1):
        compiler.compile(StructuredOutput(choice=(f"x{number}",)))
    assert len(compiler._grammars) == MAX_CACHED
    assert compiler.compile(StructuredOutput(regex="a")) is not first


def test_threads_may_share_a_grammar() -> None:
    """Copies share what llguidance has worked out so far; each still goes its own way."""
    grammar = COMPILER.compile(StructuredOutput(json_object=True))
    texts = [json.dumps({"a" * n: n, "b": [n] * n}) for n in range(1, 9)]
    wrong: list[str] = []

    def walk(text: str) -> None:
        state = grammar.start((END,))
        for byte in text.encode():
            if not state.allowed()[byte]:
                wrong.append(text)
            state.append([byte])
        if not state.allowed()[END]:
            wrong.append(text)

    threads = [threading.Thread(target=walk, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_error_carries_no_grammar_state() -> None:
    with pytest.raises(InvalidParameterError) as caught:
        start(json_schema={"type": "string", "pattern": "(?<=a)b"})
    assert not re.search("<state>|<grammar>", str(caught.value))


def test_forced_text_is_cut_into_the_longest_tokens_of_its_bytes() -> None:
    vocabulary = _Vocabulary([b"a", b"ab", b"", b"c", "\u00e9".encode()])
    assert vocabulary(b"abca\xc3\xa9") == [1, 3, 0, 4]
    assert vocabulary(b"") == []
    with pytest.raises(ValueError, match="no token"):
        vocabulary(b"az")
