"""What the tokens of a vocabulary are: their strings, their kinds and the bytes that they stand for."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SPACE_MARK = "\u2581"
"""What SentencePiece writes for a space inside a token."""

GUARDED_STRINGS = frozenset({"</s>"})
"""User-defined tokens that plain text never becomes: where one model has an HTML tag, many end a text, and
llama.cpp, whose ids are the reference, takes it for special in every vocabulary. It keeps its text."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_PADDING_NAME = re.compile(r"\[PAD\d+\]")


class TokenType(enum.IntEnum):
    """Kinds of tokens, with the numbers of `tokenizer.ggml.token_type` in the GGUF specification."""

    NORMAL = 1
    UNKNOWN = 2
    """Stands for what the vocabulary cannot spell; treated like a control token."""
    CONTROL = 3
    """Means something to the model and has no text: beginning, end, role marks."""
    USER_DEFINED = 4
    """Text that is always one token, wherever it stands."""
    UNUSED = 5
    """A row without a meaning."""
    BYTE = 6
    """SentencePiece's spelling of one byte, `<0xXX>`."""


def _byte_level_alphabet() -> dict[str, int]:
    """Return the 256 characters that byte-level BPE writes for bytes (GPT-2's table), and their bytes.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, take U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + index), byte) for index, byte in enumerate(others))
    return alphabet


_BYTE_OF_CHARACTER = _byte_level_alphabet()


def byte_level_bytes(string: str) -> bytes:
    """Return the bytes of a byte-level BPE token; a string outside the alphabet stands for itself."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in string])
    except KeyError:
        return string.encode()


def sentencepiece_bytes(string: str) -> bytes:
    """Return the bytes of a SentencePiece token: `<0xXX>` is a byte, the space mark a space."""
    if match := _BYTE_TOKEN.fullmatch(string):
        return bytes.fromhex(match[1])
    return string.replace(SPACE_MARK, " ").encode()


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The rows of a vocabulary, by id."""

    strings: Sequence[str]
    """Each token as its file spells it."""
    types: bytes
    """`TokenType` of each token."""
    spell: Callable[[str], bytes]
    """From the spelling of a normal or byte token to its bytes."""
    num_real_tokens: int = field(init=False)
    """Ids from here on are padding: unused rows, or rows named `[PADn]`, at the end of the vocabulary."""

    def __post_init__(self) -> None:
        """Count the padding at the end."""
        count = len(self.strings)
        while count and self._is_padding(count - 1):
            count -= 1
        object.__setattr__(self, "num_real_tokens", count)

    def _is_padding(self, token_id: int) -> bool:
        return self.types[token_id] == TokenType.UNUSED or bool(
            _PADDING_NAME.fullmatch(self.strings[token_id])
        )

    def text_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; none for control, unknown and unused tokens."""
        kind = self.types[token_id]
        if kind in (TokenType.NORMAL, TokenType.BYTE):
            return self.spell(self.strings[token_id])
        if kind == TokenType.USER_DEFINED:
            return self.strings[token_id].encode()
        return b""

    def ids_of(self, *kinds: TokenType) -> dict[str, int]:
        """Return string and id of every token of these kinds."""
        wanted = frozenset(kinds)
        return {self.strings[index]: index for index, kind in enumerate(self.types) if kind in wanted}

    def whole_tokens(self) -> dict[str, int]:
        """Return the tokens that are found whole in any text."""
        found = self.ids_of(TokenType.USER_DEFINED)
        return {string: token_id for string, token_id in found.items() if string not in GUARDED_STRINGS}

    def special_tokens(self) -> dict[str, int]:
        """Return the tokens that are found in a text only where that is asked for."""
        found = self.ids_of(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        return {string: found[string] for string in found.keys() - self.whole_tokens().keys()}
