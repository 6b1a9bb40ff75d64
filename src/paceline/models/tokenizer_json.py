"""Reads a tokenizer from a Hugging Face model folder.

`tokenizer.json` is followed as it is, by the library whose format it is (https://huggingface.co/docs/tokenizers);
which of its tokens begin and end a text is in `tokenizer_config.json` and `generation_config.json`.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from paceline.errors import ModelFileError, UnsupportedModelError
from paceline.models.json_file import read_json, read_text, unreadable
from paceline.models.tokenizer_special import SpecialIds, end_string_ids, warn_without_end
from paceline.models.tokenizer_split import TokenSplitter
from paceline.models.tokenizer_tokens import (
    TokenTable,
    TokenType,
    byte_level_bytes,
    sentencepiece_bytes,
)

MAX_GAPS = 1_000_000
"""Most ids without a token; a vocabulary of sound files has a few thousand at most."""
_SENTENCEPIECE_DECODERS = frozenset({"ByteFallback", "Metaspace", "Replace"})


class LibraryEncoder:
    """Encodes with the `tokenizers` library."""

    def __init__(self, definition: Mapping[str, Any], library: tokenizers.Tokenizer) -> None:
        """Wrap `library`, which was made from `definition`, the contents of its `tokenizer.json`."""
        self._definition = definition
        self._library = library
        added = library.get_added_tokens_decoder()
        self._special = {
            token.content: (token_id, token) for token_id, token in added.items() if token.special
        }
        self._splitter = TokenSplitter({string: token_id for string, (token_id, _) in self._special.items()})
        self._lock = threading.Lock()  # whether special tokens are parsed is a state of the library's object

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Return the token ids of `text`, without anything added."""
        return self._encode(self._library, text, parse_special)

    def encode_guarded(self, text: str, restore: Mapping[int, int]) -> list[int]:
        """Return the ids of `text`, special tokens parsed first, then `restore` applied to the rest."""
        ids: list[int] = []
        done = 0
        for start, end, token_id in self._special_spans(text):
            ids += self._encode_between(text[done:start].translate(restore), is_first=done == 0)
            ids.append(token_id)
            done = end
        return ids + self._encode_between(text[done:].translate(restore), is_first=done == 0)

    def _special_spans(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, id) of special tokens, with the white space that each takes along."""
        done = 0
        for start, end, token_id in self._splitter.find(text):
            _, token = self._special[text[start:end]]
            if token.single_word and (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum()):
                continue
            if token.lstrip:
                start = max(done, len(text[:start].rstrip()))
            if token.rstrip:
                end = len(text) - len(text[end:].lstrip())
            yield start, end, token_id
            done = end

    def _encode_between(self, text: str, is_first: bool) -> list[int]:
        if not text:
            return []
        return self._encode(self._library if is_first else self._continuation, text, parse_special=False)

    @functools.cached_property
    def _continuation(self) -> tokenizers.Tokenizer:
        """The library's object for text that does not stand at the start, where no space is put before it."""
        text = json.dumps(self._definition, ensure_ascii=False)
        never = text.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
        return self._library if never == text else load_library(never, Path("tokenizer.json"))

    def _encode(self, library: tokenizers.Tokenizer, text: str, parse_special: bool) -> list[int]:
        with self._lock:
            library.encode_special_tokens = not parse_special
            ids: list[int] = library.encode(text, add_special_tokens=False).ids
        return ids


def read_folder(folder: Path) -> tuple[TokenTable, LibraryEncoder, SpecialIds]:
    """Return the vocabulary, the encoder and the special tokens of a model folder.

    Raises:
        ModelFileError: `tokenizer.json` is absent or damaged, or names a token that it does not have.
        UnsupportedModelError: it is not BPE.
    """
    path = folder / "tokenizer.json"
    definition = read_json(path)
    if not definition:
        raise ModelFileError(
            given=f"no tokenizer.json in {folder}",
            expected="the model's tokenizer beside its weights",
            remedy="Fetch the model's tokenizer.json and tokenizer_config.json into the folder",
        )
    model = definition.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if kind != "BPE":
        raise UnsupportedModelError(
            given=f"a tokenizer of type {kind!r} in {path}",
            expected="BPE",
            remedy="Use a model with a BPE tokenizer",
        )
    library = load_library(read_text(path), path)
    table = _table(library, _spelling(definition, path), path)
    return table, LibraryEncoder(definition, library), _special_ids(folder, library, table)


def load_library(definition: str, path: Path) -> tokenizers.Tokenizer:
    """Return the library's tokenizer for the text of a `tokenizer.json`."""
    try:
        library = tokenizers.Tokenizer.from_str(definition)
    except Exception as error:  # the library raises bare Exception for whatever its Rust side refuses
        raise unreadable(path, error) from None
    # A file may carry the padding and truncation of somebody's training run; a prompt is never cut unasked.
    library.no_padding()
    library.no_truncation()
    return library


def _spelling(definition: Mapping[str, Any], path: Path) -> Callable[[str], bytes]:
    """Return how tokens spell bytes, by the decoder that the file names."""
    decoder = definition.get("decoder")
    nested = decoder.get("decoders") if isinstance(decoder, dict) else None
    parts = [decoder, *(nested if isinstance(nested, list) else [])]
    kinds = {str(part.get("type")) for part in parts if isinstance(part, dict)}
    if "ByteLevel" in kinds:
        return byte_level_bytes
    if kinds & _SENTENCEPIECE_DECODERS:
        return sentencepiece_bytes
    raise UnsupportedModelError(
        given=f"decoders {sorted(kinds)} in {path}",
        expected="ByteLevel, or SentencePiece's: " + ", ".join(sorted(_SENTENCEPIECE_DECODERS)),
        remedy="Use a model with one of these",
    )


def _table(library: tokenizers.Tokenizer, spell: Callable[[str], bytes], path: Path) -> TokenTable:
    vocabulary = library.get_vocab(with_added_tokens=True)
    size = max(vocabulary.values(), default=-1) + 1
    if size > len(vocabulary) + MAX_GAPS:
        raise unreadable(path, f"{len(vocabulary)} tokens with ids up to {size - 1}")
    strings = [f"[PAD{index}]" for index in range(size)]
    types = bytearray([TokenType.UNUSED]) * size
    for string, token_id in vocabulary.items():
        strings[token_id], types[token_id] = string, TokenType.NORMAL
    for token_id, token in library.get_added_tokens_decoder().items():
        types[token_id] = TokenType.CONTROL if token.special else TokenType.USER_DEFINED
    return TokenTable(strings, bytes(types), spell)


def _special_ids(folder: Path, library: tokenizers.Tokenizer, table: TokenTable) -> SpecialIds:
    config = read_json(folder / "tokenizer_config.json")
    bos, eos = (_named_id(config, name, library, folder) for name in ("bos_token", "eos_token"))
    ends = read_json(folder / "generation_config.json").get("eos_token_id")
    listed: Sequence[int] = ends if isinstance(ends, list) else [] if ends is None else [ends]
    if wrong := [end for end in listed if type(end) is not int or not 0 <= end < len(table.strings)]:
        raise unreadable(folder / "generation_config.json", f"eos_token_id {wrong[0]!r}")
    if eos is None and not listed:
        warn_without_end("tokenizer_config.json (eos_token)")
    added, plain = (
        library.encode("a", add_special_tokens=with_special).ids for with_special in (True, False)
    )
    if not plain or plain[0] not in added:
        raise unreadable(folder / "tokenizer.json", "a vocabulary that cannot spell the letter a")
    num_before, num_plain = added.index(plain[0]), len(plain)
    return SpecialIds(
        bos_id=bos,
        eos_id=eos,
        end_ids=frozenset({*end_string_ids(table), *listed} | ({eos} if eos is not None else set())),
        prefix_ids=tuple(added[:num_before]),
        suffix_ids=tuple(added[num_before + num_plain :]),
    )


def _named_id(
    config: Mapping[str, Any], name: str, library: tokenizers.Tokenizer, folder: Path
) -> int | None:
    """Return the id of a token that the configuration names, or none where it names none."""
    value = config.get(name)
    string = value.get("content") if isinstance(value, Mapping) else value
    if string is None:
        return None
    token_id: int | None = library.token_to_id(string) if isinstance(string, str) else None
    if token_id is None:
        raise ModelFileError(
            given=f"{name} {string!r} in {folder / 'tokenizer_config.json'}",
            expected="a token of tokenizer.json",
            remedy="Fetch both files again",
        )
    return token_id
