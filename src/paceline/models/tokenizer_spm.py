"""SentencePiece BPE from the tokens and scores of a GGUF file.

The rule: start from single characters; among all neighbours whose join is a token, join the pair with the
best score, leftmost first where scores are equal; repeat until none is left. What is not a token then is
spelled in bytes. (Kudo and Richardson, "SentencePiece", 2018; the BPE model of its library.)
"""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Mapping, Sequence

from paceline.errors import ModelFileError
from paceline.models.tokenizer_tokens import SPACE_MARK, TokenTable, TokenType

_CACHED_WORDS, _CACHED_LENGTH = 65_536, 64


def _byte_ids(table: TokenTable, unknown_id: int | None) -> list[int]:
    """Return the id for each of the 256 bytes; a byte without a token becomes the unknown token."""
    found = table.ids_of(TokenType.BYTE)
    ids = [found.get(f"<0x{byte:02X}>", unknown_id) for byte in range(256)]
    present = [token_id for token_id in ids if token_id is not None]
    if len(present) < len(ids):
        raise ModelFileError(
            given=f"no token for byte 0x{ids.index(None):02X} and no unknown token",
            expected="a token <0xXX> for each byte, or tokenizer.ggml.unknown_token_id",
            remedy="Fetch or convert the model again",
        )
    return present


class SentencePieceEncoder:
    """Encodes plain text by SentencePiece's BPE rule."""

    def __init__(
        self, table: TokenTable, scores: Sequence[float], add_space_prefix: bool, unknown_id: int | None
    ) -> None:
        """Build it.

        Args:
            table: the vocabulary.
            scores: score of each token; higher is joined earlier.
            add_space_prefix: whether text at the start, or after a special token, is encoded as if a space
                stood before it.
            unknown_id: the token for bytes that the vocabulary lacks.

        Raises:
            ModelFileError: the vocabulary can spell neither every byte nor the unknown.
        """
        # Only normal tokens are made by joining: a control token never comes out of somebody's text.
        self._ids: Mapping[str, int] = table.ids_of(TokenType.NORMAL)
        self._rank = {string: -scores[token_id] for string, token_id in self._ids.items()}
        self._byte_ids = _byte_ids(table, unknown_id)
        self._prefix = SPACE_MARK if add_space_prefix else ""
        self._cut = self._word_border()
        self._cached = functools.lru_cache(_CACHED_WORDS)(self._join)

    def _word_border(self) -> re.Pattern[str]:
        """Return a pattern for places that no token reaches across, so that words can be encoded alone.

        That is: before a space mark, unless the character before it is one too, or some token has that pair.
        """
        inner = re.compile(f"([^{SPACE_MARK}])(?={SPACE_MARK})")
        joined = {pair for string in self._ids if SPACE_MARK in string[1:] for pair in inner.findall(string)}
        return re.compile(f"(?<=[^{SPACE_MARK}{''.join(map(re.escape, joined))}])(?={SPACE_MARK})")

    def encode_piece(self, text: str, is_first: bool) -> Sequence[int]:
        """Return the token ids of a piece of plain text.

        Args:
            text: the piece.
            is_first: whether it stands at the start or right after a special token.
        """
        marked = text.replace(" ", SPACE_MARK)
        if is_first:
            marked = self._prefix + marked
        return [token_id for word in self._cut.split(marked) for token_id in self._encode_word(word)]

    def _encode_word(self, word: str) -> tuple[int, ...]:
        # Long words hardly come again, and many of them would fill the memory.
        return self._cached(word) if len(word) <= _CACHED_LENGTH else self._join(word)

    def _join(self, word: str) -> tuple[int, ...]:
        """Join the characters of a word, best score first."""
        symbols: list[str] = list(word)
        after = [*range(1, len(symbols)), -1] if symbols else []
        before = list(range(-1, len(symbols) - 1))
        heap: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            joined = symbols[left] + symbols[right]
            if (rank := self._rank.get(joined)) is not None:
                heapq.heappush(heap, (rank, left, right, len(joined)))

        for left in range(len(symbols) - 1):
            offer(left, left + 1)
        while heap:
            _, left, right, length = heapq.heappop(heap)
            # Either side may have been joined to something else since the pair was offered.
            if not symbols[left] or not symbols[right] or len(symbols[left]) + len(symbols[right]) != length:
                continue
            symbols[left] += symbols[right]
            symbols[right] = ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
                offer(left, after[left])
            if before[left] >= 0:
                offer(before[left], left)
        return tuple(token_id for symbol in symbols if symbol for token_id in self._spell(symbol))

    def _spell(self, symbol: str) -> list[int]:
        token_id = self._ids.get(symbol)
        return [self._byte_ids[byte] for byte in symbol.encode()] if token_id is None else [token_id]
