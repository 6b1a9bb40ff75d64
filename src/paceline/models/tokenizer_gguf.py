"""Reads a tokenizer from the `tokenizer.ggml.*` keys of a GGUF file.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#ggml. A key that is absent means "none" here;
no id is ever assumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from paceline.errors import ModelFileError, UnsupportedModelError
from paceline.models.tokenizer_bpe import ByteLevelEncoder, pre_tokenizer
from paceline.models.tokenizer_special import END_STRINGS, SpecialIds, warn_without_end
from paceline.models.tokenizer_split import TokenSplitter
from paceline.models.tokenizer_spm import SentencePieceEncoder
from paceline.models.tokenizer_tokens import (
    TokenTable,
    TokenType,
    byte_level_bytes,
    sentencepiece_bytes,
)

logger = logging.getLogger(__name__)

_UNDEFINED = 0
"""The specification's number for a token of no stated type."""
_SPELL: Mapping[str, Callable[[str], bytes]] = {"gpt2": byte_level_bytes, "llama": sentencepiece_bytes}


class PieceEncoder(Protocol):
    """Encodes a piece of plain text."""

    def encode_piece(self, text: str, is_first: bool) -> Sequence[int]:
        """Return its token ids; `is_first`: it stands at the start or right after a special token."""


class SplittingEncoder:
    """Takes whole tokens out of a text first, then encodes what lies between them."""

    def __init__(self, table: TokenTable, pieces: PieceEncoder) -> None:
        self._plain = TokenSplitter(table.whole_tokens())
        self._special = TokenSplitter(table.whole_tokens() | table.special_tokens())
        self._pieces = pieces

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Return the token ids of `text`, without anything added."""
        return self._encode(self._special if parse_special else self._plain, text, is_first=True)

    def encode_guarded(self, text: str, restore: Mapping[int, int]) -> list[int]:
        """Return the ids of `text`, special tokens parsed first, then `restore` applied to the rest."""
        ids: list[int] = []
        is_first = True
        for piece, token_id in self._special.split(text):
            if token_id is None:
                ids += self._encode(self._plain, piece.translate(restore), is_first)
            else:
                ids.append(token_id)
            is_first = token_id is not None
        return ids

    def _encode(self, splitter: TokenSplitter, text: str, is_first: bool) -> list[int]:
        ids: list[int] = []
        for piece, token_id in splitter.split(text):
            if token_id is None:
                ids += self._pieces.encode_piece(piece, is_first)
            else:
                ids.append(token_id)
            is_first = token_id is not None
        return ids


def read_gguf(metadata: Mapping[str, Any]) -> tuple[TokenTable, SplittingEncoder, SpecialIds]:
    """Return the vocabulary, the encoder and the special tokens that a GGUF file describes.

    Args:
        metadata: the file's keys and values.

    Raises:
        ModelFileError: a needed key is absent, or two disagree.
        UnsupportedModelError: the kind of tokenizer or the pre-tokenizer is not supported.
    """
    kind = _kind(metadata)
    strings = _array(metadata, "tokens", str)
    types = _array(metadata, "token_type", int, len(strings))
    _check_types(types)
    special = _special_ids(metadata, kind, strings, types)
    table = TokenTable(strings, bytes(_promoted(types, strings, special)), _SPELL[kind])
    pieces = _byte_level(metadata, table) if kind == "gpt2" else _sentencepiece(metadata, table)
    return table, SplittingEncoder(table, pieces), special


def _kind(metadata: Mapping[str, Any]) -> str:
    kind = _text(metadata, "model")
    if kind is None:
        raise ModelFileError(
            given="no tokenizer in the file (tokenizer.ggml.model is absent)",
            expected="a language model's GGUF file with its tokenizer",
            remedy="Fetch or convert the model again, with its tokenizer",
        )
    if kind not in _SPELL:
        raise UnsupportedModelError(
            given=f"tokenizer kind {kind!r} (tokenizer.ggml.model)",
            expected="gpt2 (byte-level BPE) or llama (SentencePiece BPE)",
            remedy="Use a model with one of these",
        )
    return kind


def _text(metadata: Mapping[str, Any], name: str) -> str | None:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is not None and not isinstance(value, str):
        raise _wrong(f"{name} = {value!r:.60}", "a string")
    return value


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise _wrong(f"{name} = {value!r:.60}", "true or false")
    return value


def _array(metadata: Mapping[str, Any], name: str, kind: type, length: int | None = None) -> list[Any]:
    """Return an array key, checked to be there, of one kind of item and with one for each token."""
    value = metadata.get(f"tokenizer.ggml.{name}")
    expected = f"{length or 'an array of'} {kind.__name__} entries, one for each token"
    if not value:
        raise _wrong(f"{name} is absent" if value is None else f"{name} = {value!r}", expected)
    if not isinstance(value, list) or set(map(type, value)) != {kind}:
        raise _wrong(f"{name} = {value!r:.60}", expected)
    if length is not None and len(value) != length:
        raise _wrong(f"{name} has {len(value)} entries", expected)
    return list(value)


def _check_types(types: Sequence[int]) -> None:
    unknown = set(types) - {_UNDEFINED, *TokenType}
    if unknown:
        raise _wrong(
            f"token_type has the number {min(unknown)}", f"numbers from {_UNDEFINED} to {max(TokenType)}"
        )


def _id(metadata: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    """Return a token id key, or none where the file has none."""
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < num_tokens:
        raise _wrong(
            f"{name}_token_id = {value!r:.60}", f"an id below the {num_tokens} tokens of the vocabulary"
        )
    return value


def _wrong(given: str, expected: str) -> ModelFileError:
    return ModelFileError(
        given=f"tokenizer.ggml.{given}", expected=expected, remedy="Fetch or convert the model again"
    )


def _special_ids(
    metadata: Mapping[str, Any], kind: str, strings: Sequence[str], types: Sequence[int]
) -> SpecialIds:
    bos, eos, eot, eom = (_id(metadata, name, len(strings)) for name in ("bos", "eos", "eot", "eom"))
    if eos is None:
        warn_without_end("its file (tokenizer.ggml.eos_token_id)")
    marks = (TokenType.CONTROL, TokenType.USER_DEFINED)
    known = {index for index, kind in enumerate(types) if kind in marks and strings[index] in END_STRINGS}
    by_default = kind == "llama" or pre_tokenizer(_text(metadata, "pre")).add_bos
    adds_bos = _flag(metadata, "add_bos_token", by_default)
    adds_eos = _flag(metadata, "add_eos_token", False)
    return SpecialIds(
        bos_id=bos,
        eos_id=eos,
        end_ids=frozenset(known.union(i for i in (eos, eot, eom) if i is not None)),
        prefix_ids=(bos,) if bos is not None and adds_bos else (),
        suffix_ids=(eos,) if eos is not None and adds_eos else (),
    )


def _promoted(types: list[int], strings: Sequence[str], special: SpecialIds) -> list[int]:
    """Return the types with user-defined end and begin tokens made control tokens.

    A user-defined token is found in any text, so that a user could end or begin a turn by typing one.
    """
    named = special.end_ids | ({special.bos_id} if special.bos_id is not None else set())
    for token_id in sorted(named):
        if types[token_id] == TokenType.USER_DEFINED:
            logger.warning(
                "token %r is user-defined in the file; taken as a control token", strings[token_id]
            )
            types[token_id] = TokenType.CONTROL
    return types


def _byte_level(metadata: Mapping[str, Any], table: TokenTable) -> ByteLevelEncoder:
    vocabulary = {string: index for index, string in enumerate(table.strings)}
    rule = pre_tokenizer(_text(metadata, "pre"))
    return ByteLevelEncoder(vocabulary, _array(metadata, "merges", str), rule)


def _sentencepiece(metadata: Mapping[str, Any], table: TokenTable) -> SentencePieceEncoder:
    return SentencePieceEncoder(
        table,
        scores=_array(metadata, "scores", float, len(table.strings)),
        add_space_prefix=_flag(metadata, "add_space_prefix", True),
        unknown_id=_id(metadata, "unknown", len(table.strings)),
    )
