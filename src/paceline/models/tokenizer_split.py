"""Finds whole tokens in a text, longest first at each position, before any merging is done."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class TokenSplitter:
    """Cuts a text at the tokens of a fixed set.

    At each position, from left to right, the longest token that stands there is taken.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._ids = {string: token_id for string, token_id in tokens.items() if string}
        lengths: dict[str, set[int]] = {}
        for string in self._ids:
            lengths.setdefault(string[0], set()).add(len(string))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        firsts = "".join(map(re.escape, self._lengths))
        self._candidate = re.compile(f"[{firsts}]") if firsts else None

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, token id) of each token, in order and without overlap."""
        if self._candidate is None:
            return
        position = 0
        while match := self._candidate.search(text, position):
            position = match.start()
            end = self._longest(text, position)
            if end is None:
                position += 1
                continue
            yield position, end, self._ids[text[position:end]]
            position = end

    def starts(self, text: str) -> Iterator[int]:
        """Yield every place at which a token begins: inside others too, or cut off by the end of the text."""
        if self._candidate is not None:
            for match in self._candidate.finditer(text):
                if self._longest(text, match.start()) is not None or self._breaks_off(text, match.start()):
                    yield match.start()

    def _breaks_off(self, text: str, start: int) -> bool:
        """Whether all of the text from `start` on is the beginning of a longer token."""
        if len(text) - start >= self._lengths[text[start]][0]:
            return False
        return any(string.startswith(text[start:]) for string in self._ids)

    def _longest(self, text: str, start: int) -> int | None:
        for length in self._lengths[text[start]]:
            if text[start : start + length] in self._ids:
                return min(start + length, len(text))
        return None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield the pieces of `text` in order, none empty: (plain text, None) or (token's text, its id)."""
        done = 0
        for start, end, token_id in self.find(text):
            if start > done:
                yield text[done:start], None
            yield text[start:end], token_id
            done = end
        if done < len(text):
            yield text[done:], None
