"""Text to token ids and back, as the model's own files say."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import InvalidParameterError
from paceline.models.tokenizer_gguf import read_gguf
from paceline.models.tokenizer_json import read_folder
from paceline.models.tokenizer_special import SpecialIds
from paceline.models.tokenizer_tokens import TokenTable


class Encoder(Protocol):
    """What turns text into token ids: one implementation for GGUF files, one for `tokenizer.json`."""

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """Return the ids of `text`, without anything added.

        Args:
            text: the text.
            parse_special: whether the strings of control tokens in it become those tokens.
        """

    def encode_guarded(self, text: str, restore: Mapping[int, int]) -> list[int]:
        """Return the ids of `text`, special tokens parsed first, then `restore` applied to the rest."""


class Tokenizer:
    """A model's vocabulary and the rule that cuts text into it.

    Safe to use from several threads.
    """

    def __init__(self, table: TokenTable, encoder: Encoder, special: SpecialIds) -> None:
        self._table = table
        self._encoder = encoder
        self._special = special
        self._ids = {string: index for index, string in enumerate(table.strings)}
        self.special_tokens: Mapping[str, int] = table.special_tokens()
        """String and id of the tokens that plain text never becomes."""

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Return the tokenizer that a GGUF file's metadata describes.

        Raises:
            ModelFileError: a needed key is absent, or two disagree.
            UnsupportedModelError: the kind of tokenizer or the pre-tokenizer is not supported.
        """
        return cls(*read_gguf(metadata))

    @classmethod
    def from_tokenizer_json(cls, folder: Path) -> Tokenizer:
        """Return the tokenizer of a folder with `tokenizer.json` and `tokenizer_config.json`.

        Raises:
            ModelFileError: `tokenizer.json` is absent or damaged, or names a token that it does not have.
            UnsupportedModelError: it is not BPE.
        """
        return cls(*read_folder(folder))

    @property
    def vocab_size(self) -> int:
        """Number of rows of the vocabulary, padding included."""
        return len(self._table.strings)

    @property
    def num_real_tokens(self) -> int:
        """Ids from here on are padding: never to be proposed or sampled."""
        return self._table.num_real_tokens

    @property
    def token_strings(self) -> Sequence[str]:
        """Each token as its file spells it, by id."""
        return self._table.strings

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, or none where the file names none."""
        return self._special.bos_id

    @property
    def eos_id(self) -> int | None:
        """The file's own end-of-text token, or none; `eos_ids` is what ends an answer."""
        return self._special.eos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends an answer: end of text, end of turn, end of message."""
        return self._special.end_ids

    @property
    def add_bos(self) -> bool:
        """Whether a prompt begins with `bos_id`."""
        return self._special.bos_id is not None and self._special.bos_id in self._special.prefix_ids

    def token_string(self, token_id: int) -> str:
        """Return a token as its file spells it.

        Raises:
            InvalidParameterError: there is no such token.
        """
        self._check_id(token_id)
        return self._table.strings[token_id]

    def token_id(self, string: str) -> int | None:
        """Return the id of the token that the file spells so, or none."""
        return self._ids.get(string)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; none for control, unknown and unused tokens.

        Raises:
            InvalidParameterError: there is no such token.
        """
        self._check_id(token_id)
        return self._table.text_bytes(token_id)

    def encode(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: the text, taken as it is: no Unicode normalisation beyond what the file asks for.
            add_special: put BOS before it and EOS after it where the file says so.
            parse_special: turn the strings of control tokens in it into those tokens. Leave it off for text
                that a user typed.

        Raises:
            InvalidParameterError: the text is no Unicode text (it has a lone surrogate).
        """
        _check_text(text)
        ids = self._encoder.encode(text, parse_special)
        return [*self._special.prefix_ids, *ids, *self._special.suffix_ids] if add_special else ids

    def encode_guarded(self, text: str, stand_ins: Mapping[str, str]) -> list[int]:
        """Return the token ids of a rendered prompt in which some characters must not make special tokens.

        Args:
            text: the prompt, its special tokens as strings, with stand-ins for protected characters.
            stand_ins: from a stand-in to the character that it stands for. They are put back after special
                tokens were found, so that the text around them is encoded as it was meant.

        Raises:
            InvalidParameterError: the text is no Unicode text.
        """
        _check_text(text)
        return self._encoder.encode_guarded(text, {ord(one): ord(other) for one, other in stand_ins.items()})

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of tokens, as a continuation: a leading space is kept.

        Invalid bytes become U+FFFD; the bytes of a character cut off at the end are dropped.
        """
        data = b"".join(map(self.token_bytes, token_ids))
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data)

    def _check_id(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidParameterError(
                given=f"token id {token_id}",
                expected=f"an id from 0 to {self.vocab_size - 1}",
                remedy="Use ids of this model's vocabulary",
            )


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameterError(
            given=f"a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start} of a text",
            expected="Unicode text",
            remedy="Send the character whole, or leave it out",
        ) from None
