"""The suffix drafter: the longest suffix of a sequence that occurred earlier in it, and what followed there.

Known as prompt lookup decoding (Saxena, 2023). The search structure is a suffix automaton (Blumer et al.,
1985), built as the sequence grows: constant amortised work a token, whatever the history's length.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.interface import DraftProposal, DraftRequest

MIN_MATCH_LENGTH = 2
"""A single repeated token says too little: one match in three or four is followed by the same token."""


class SuffixAutomaton:
    """All substrings of a growing list of tokens, with one earlier end position for each.

    State 0 is the empty string. A state stands for a set of substrings that end at the same places;
    `_length` is its longest, `_link` the state of the longest suffix with more occurrences.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [-1]
        self._last = 0
        self._match = (0, -1)

    @property
    def match(self) -> tuple[int, int]:
        """(length, end position) of the longest suffix that also ended earlier; (0, -1) if none did."""
        return self._match

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens."""
        for token_id in token_ids:
            self._append(token_id)

    def _append(self, token_id: int) -> None:
        position = len(self.token_ids)
        self.token_ids.append(token_id)
        state = self._new_state({}, self._length[self._last] + 1, position)
        previous = self._last
        while previous != -1 and token_id not in self._next[previous]:
            self._next[previous][token_id] = state
            previous = self._link[previous]
        self._link[state] = 0 if previous == -1 else self._suffix_state(previous, token_id)
        self._last = state
        link = self._link[state]
        self._match = (self._length[link], self._end[link])
        # From now on this occurrence is the most recent one of that suffix; recent text predicts best.
        if link:
            self._end[link] = position

    def _suffix_state(self, previous: int, token_id: int) -> int:
        """Return the state of `previous` + token, split off from a longer one if need be."""
        found = self._next[previous][token_id]
        if self._length[previous] + 1 == self._length[found]:
            return found
        clone = self._new_state(dict(self._next[found]), self._length[previous] + 1, self._end[found])
        self._link[clone] = self._link[found]
        self._link[found] = clone
        while previous != -1 and self._next[previous].get(token_id) == found:
            self._next[previous][token_id] = clone
            previous = self._link[previous]
        return clone

    def _new_state(self, transitions: dict[int, int], length: int, end: int) -> int:
        self._next.append(transitions)
        self._link.append(0)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1


class SuffixDrafter:
    """Proposes what followed the longest earlier occurrence of the sequence's own suffix."""

    name = "suffix"

    def __init__(self, min_match_length: int = MIN_MATCH_LENGTH) -> None:
        if min_match_length < 1:
            raise ValueError(f"a match needs at least one token: {min_match_length}")
        self.min_match_length = min_match_length
        self._histories: dict[int, SuffixAutomaton] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """Return one proposal for each request; empty where no suffix is long enough."""
        return [self._propose(request) for request in requests]

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._histories.pop(sequence_id, None)

    def _propose(self, request: DraftRequest) -> DraftProposal:
        history = self._histories.setdefault(request.sequence_id, SuffixAutomaton())
        history.extend(request.token_ids[len(history.token_ids) :])
        length, end = history.match
        if length < self.min_match_length:
            return DraftProposal()
        drafted = _continue_from(history.token_ids, end + 1, request.draft_length)
        return DraftProposal(drafted, (length / (length + 1),) * len(drafted))


def _continue_from(token_ids: list[int], start: int, count: int) -> tuple[int, ...]:
    """Copy `count` tokens from `start` on; past the end the copy goes on into itself, so a period repeats."""
    period = len(token_ids) - start
    return tuple(token_ids[start + offset % period] for offset in range(count))
