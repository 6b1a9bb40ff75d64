"""Where the end of a running sequence occurs in another text, kept up to date token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.drafters.suffix_automaton import NOTHING, SuffixAutomaton

MAX_MATCH_LENGTH = 64
"""Longer matches in other texts count as this long, so that catching up with a changed text is short work."""


@dataclass(frozen=True, slots=True)
class SuffixMatch:
    """The longest end of a sequence that occurs in a text."""

    text: SuffixAutomaton
    length: int
    state: int
    is_own: bool = False
    """Whether the text is the sequence itself, at whose end one occurrence has nothing behind it."""

    def continuation(self, num_tokens: int, min_length: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return what most often followed, token by token, and the share of it at each of them.

        Where the text ends, a shorter match leads on, as long as it has `min_length` tokens; a period thus
        repeats. With c of n continuations at a match of length m the share is c / (n + 1 / m): a longer match
        needs fewer witnesses.
        """
        text, state, length = self.text, self.state, self.length
        num_open = int(self.is_own)
        token_ids: list[int] = []
        shares: list[float] = []
        while len(token_ids) < num_tokens and length >= min_length:
            token_id = text.most_frequent(state)
            if token_id == NOTHING:
                state = text.link_of(state)
                length, num_open = text.length_of(state), 1
                continue
            if token_id < 0:
                break
            target = text.follow(state, token_id)
            count = text.count_of(target)
            shares.append(count / (max(count, text.count_of(state) - num_open) + 1 / length))
            token_ids.append(token_id)
            state, length, num_open = target, length + 1, 0
        return tuple(token_ids), tuple(shares)


class MatchCursor:
    """The match of one sequence in one text; both may grow."""

    def __init__(self, text: SuffixAutomaton) -> None:
        self._text = text
        self._num_read = 0
        self._num_seen = 0  # length of the text at the last move
        self._state = 0
        self._length = 0

    def move(self, token_ids: Sequence[int]) -> SuffixMatch:
        """Return the match of a sequence's end; it only ever grew since the last call."""
        start = len(token_ids) - MAX_MATCH_LENGTH
        # In a text that has grown, an end that did not occur may do so now.
        if self._num_seen != self._text.num_tokens or self._num_read < start:
            self._num_seen = self._text.num_tokens
            self._state = self._length = 0
            self._num_read = max(0, start)
        for token_id in token_ids[self._num_read :]:
            self._step(token_id)
        self._num_read = len(token_ids)
        return SuffixMatch(self._text, self._length, self._state)

    def _step(self, token_id: int) -> None:
        text = self._text
        while (target := text.follow(self._state, token_id)) == NOTHING:
            if self._state == 0:
                return
            self._state = text.link_of(self._state)
            self._length = text.length_of(self._state)
        self._state = target
        self._length = min(self._length + 1, MAX_MATCH_LENGTH)
        while text.length_of(shorter := text.link_of(self._state)) >= self._length:
            self._state = shorter
