"""Structured output: from the form that was asked for to the set of tokens that may come next.

Grammars are llguidance's (https://github.com/guidance-ai/llguidance, docs/syntax.md). A token may come when
the text with it can still be completed; nothing else is forced, also not where one text alone is left,
because how that text is cut into tokens is the model's own choice. So the set depends on the text so far and
on nothing that was looked at in between.
"""

from __future__ import annotations

import functools
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import llguidance

from paceline.errors import GenerationError, InvalidParameterError
from paceline.parameters import StructuredOutput
from paceline.sampling.grammar_state import GrammarState

_OPTIONS = '%llguidance {"no_forcing": true}\n'
_END = b"\xff<end>"
"""llguidance wants one token that ends a text. It gets one that no vocabulary has, behind the last real one;
which ids end an answer is the request's own matter."""
MAX_CACHED = 64


@dataclass(frozen=True, slots=True)
class Grammar:
    """One form over one vocabulary, ready for any number of answers."""

    matcher: llguidance.LLMatcher
    num_real_tokens: int

    def start(self, end_token_ids: Iterable[int]) -> GrammarState:
        """Return the state of an answer that has no token yet; `end_token_ids` may come once it is whole."""
        return GrammarState(self.matcher, self.num_real_tokens, end_token_ids)


class GrammarCompiler:
    """Compiles forms for one vocabulary. Safe to use from several threads.

    Args:
        token_bytes: the bytes that a token adds to a text; none for control tokens, which then never come.
        num_real_tokens: ids from here up are padding.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], num_real_tokens: int) -> None:
        self._token_bytes = token_bytes
        self._num_real_tokens = num_real_tokens
        self._lock = threading.Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._grammars: OrderedDict[str, Grammar] = OrderedDict()

    def compile(self, form: StructuredOutput) -> Grammar:
        """Return the grammar of a form, which may have been compiled before.

        Raises:
            InvalidParameterError: the form is no valid schema or expression, asks for what cannot be held to,
                or allows no text.
        """
        source = _source(form)
        with self._lock:
            grammar = self._grammars.pop(source, None) or self._compile(source, form)
            self._grammars[source] = grammar
            if len(self._grammars) > MAX_CACHED:
                self._grammars.popitem(last=False)
            return grammar

    def _compile(self, source: str, form: StructuredOutput) -> Grammar:
        if self._tokenizer is None:
            # Building it takes a second or two for a large vocabulary, so only when it is first needed.
            self._tokenizer = _tokenizer([self._token_bytes(i) for i in range(self._num_real_tokens)])
        # Not verbose: an error that is shown or logged must not carry the text of an answer.
        limits = llguidance.LLParserLimits(verbose_errors=False)
        grammar = llguidance.LLMatcher.grammar_from_lark(source)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refuse(form, matcher.get_error())
        compiled = Grammar(matcher, self._num_real_tokens)
        try:
            compiled.start(()).allowed()
        except GenerationError:
            raise _refuse(form, "this vocabulary has no text of this form but the empty one") from None
        return compiled


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = [*tokens, _END]
        self.eos_token_id = len(tokens)

    def __call__(self, text: bytes) -> list[int]:
        """Return tokens of these bytes, the longest first each time: for text that a grammar forces, of which
        only the bytes count. This engine forces none; the protocol asks for it.

        Raises:
            ValueError: the text cannot be cut so.
        """
        ids, longest = self._ids
        found: list[int] = []
        while text:
            size = next((n for n in range(min(len(text), longest), 0, -1) if text[:n] in ids), 0)
            if not size:
                raise ValueError(f"no token of this vocabulary begins {text[:8]!r}")
            found.append(ids[text[:size]])
            text = text[size:]
        return found

    @functools.cached_property
    def _ids(self) -> tuple[dict[bytes, int], int]:
        ids = {token: number for number, token in enumerate(self.tokens[:-1]) if token}
        return ids, max(map(len, ids), default=0)


def _tokenizer(tokens: list[bytes]) -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(_Vocabulary(tokens))  # type: ignore[arg-type]


def _source(form: StructuredOutput) -> str:
    """Return a form in llguidance's Lark syntax."""
    if form.regex is not None:
        return f"{_OPTIONS}start: /{llguidance.regex_to_lark(form.regex)}/"
    if form.choice:
        return f"{_OPTIONS}start: /{'|'.join(map(_literal, form.choice))}/"
    schema = {"type": "object"} if form.json_object else form.json_schema
    try:
        return f"{_OPTIONS}start: %json {json.dumps(schema)}"
    except (TypeError, ValueError, RecursionError) as error:
        raise _refuse(form, str(error)) from None


def _literal(text: str) -> str:
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _refuse(form: StructuredOutput, why: str) -> InvalidParameterError:
    name = "regex" if form.regex is not None else "choice" if form.choice else "json_schema"
    return InvalidParameterError(
        given=f"structured_output.{name} that cannot be used: {' '.join(why.split())[:400]}",
        expected="a form that every answer can be held to",
        remedy="Correct it, or ask for less: look-around and a few JSON schema keywords are not supported",
    )
