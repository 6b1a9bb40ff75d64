"""Byte-level BPE from the vocabulary and merges of a GGUF file, on the `tokenizers` library.

A file names the rule that cuts text into words before merging (`tokenizer.ggml.pre`). Only the name is in the
file, so each rule is written out here; a name that is not here is refused, since a wrong rule gives wrong
tokens without any sign of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import models, pre_tokenizers

from paceline.errors import ModelFileError, UnsupportedModelError
from paceline.models.tokenizer_tokens import byte_level_bytes

logger = logging.getLogger(__name__)

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Both cases are spelled out: a case-insensitive group would also take U+017F, the long s.
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_AFTER_DIGITS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _AFTER_DIGITS
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _AFTER_DIGITS
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut before merging, and what comes with it in the models that use it."""

    patterns: tuple[str, ...]
    """Applied one after another: each cuts the pieces of the one before at its matches."""
    whole_words: bool = False
    """A piece that is a token as it stands is taken whole, whatever the merges say."""
    add_bos: bool = False
    """Whether a text begins with BOS where the file has no `add_bos_token`."""


_RULES: tuple[tuple[PreTokenizer, tuple[str, ...]], ...] = (
    (PreTokenizer((_QWEN2,)), ("qwen2", "stablelm2", "megrez", "deepseek-r1-qwen", "hunyuan")),
    (
        PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"),
    ),
    (PreTokenizer((_LLAMA3,)), ("dbrx", "smaug-bpe")),
    (PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True), ("tekken",)),
    (
        PreTokenizer((r"\p{N}", _GPT2)),
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    ),
    (PreTokenizer((_GPT2,)), ("gpt-2", "phi-2", "mpt", "olmo", "jais")),
    (
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        ("default",),
    ),
)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {name: rule for rule, names in _RULES for name in names}
"""The rules by the names that GGUF files give them; patterns as in llama.cpp's `llama-vocab.cpp`, except
`tekken`, which is as in the model's own `tokenizer.json`."""


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """Return the rule that a GGUF file names.

    Raises:
        UnsupportedModelError: the name is unknown, or the file gives none.
    """
    if name is not None and name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    raise UnsupportedModelError(
        given=f"pre-tokenizer {name!r} (tokenizer.ggml.pre)" if name else "no tokenizer.ggml.pre in the file",
        expected="one of " + ", ".join(sorted(PRE_TOKENIZERS)),
        remedy="Use a model with one of these, or convert it again with a current converter; "
        "another rule would give wrong tokens",
    )


class ByteLevelEncoder:
    """Encodes plain text by byte-level BPE."""

    def __init__(self, vocabulary: Mapping[str, int], merges: Sequence[str], rule: PreTokenizer) -> None:
        """Build it.

        Args:
            vocabulary: token string to id.
            merges: pairs in order of rank, each two strings with one space between them.
            rule: how to cut text before merging.

        Raises:
            ModelFileError: a merge is not a pair, or its parts or result are not in the vocabulary.
        """
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        try:
            model = models.BPE(vocab=dict(vocabulary), merges=pairs, ignore_merges=rule.whole_words)
        except Exception as error:  # the library raises bare Exception for whatever its Rust side refuses
            raise ModelFileError(
                given=f"merges that the vocabulary does not carry ({error})",
                expected="pairs of tokens whose join is a token (tokenizer.ggml.merges)",
                remedy="Fetch or convert the model again",
            ) from None
        cuts = [
            pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated") for pattern in rule.patterns
        ]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        spelled = {byte_level_bytes(string) for string in vocabulary if len(string) == 1}
        self._lost = frozenset(byte for byte in range(256) if bytes([byte]) not in spelled)
        self._library = tokenizers.Tokenizer(model)
        self._library.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])

    def encode_piece(self, text: str, is_first: bool) -> Sequence[int]:
        """Return the token ids of a piece of plain text; where it stands makes no difference here."""
        if self._lost and not self._lost.isdisjoint(text.encode()):
            logger.warning(
                "a text has bytes that this vocabulary cannot spell (control characters); left out"
            )
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        return ids
