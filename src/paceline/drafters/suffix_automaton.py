"""All substrings of a growing text with how often each occurred and what most often followed it.

The structure is a suffix automaton (Blumer et al., "The smallest automaton recognizing the subwords of a
text", 1985): at most two states and three transitions a token, built token by token in constant amortised
time. Counts are kept for the longest suffixes of each prefix alone, `MAX_SUFFIX_DEPTH` of them, so that a
text that repeats itself costs no more than another; in usual text there are fewer than that.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

MAX_SUFFIX_DEPTH = 32
"""States that one token updates at most; see the head of this module."""
NOTHING = -1
"""Where a token id or a state could stand and none does."""
_MANY = -2


class SuffixAutomaton:
    """Substrings of a text, as states: those that end at the same places share one.

    State 0 is the empty string. `_lengths` has a state's longest string, `_links` the state of the longest
    suffix with more occurrences. Most states have one transition, which is kept flat; the rest have a mapping
    and the token that followed most often, the most recent of equals.
    """

    def __init__(self) -> None:
        self._lengths = array("i")
        self._links = array("i")
        self._counts = array("i")
        self._tokens = array("i")  # the only transition's token, or NOTHING, or _MANY
        self._targets = array("i")
        self._branches: dict[int, dict[int, int]] = {}
        self._best: dict[int, int] = {}
        self._last = self._new_state(0, NOTHING, 0)
        self.num_tokens = 0
        """Length of the text."""

    @property
    def num_states(self) -> int:
        """States, which say how much memory the text takes: at most two a token."""
        return len(self._links)

    @property
    def repeat(self) -> tuple[int, int]:
        """(length, state) of the longest suffix of the text that also ended earlier; (0, 0) if none did."""
        state = max(0, self._links[self._last])
        return self._lengths[state], state

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens, each at least 0, or a mark between texts that is below -2."""
        for token_id in token_ids:
            self._append(token_id)

    def length_of(self, state: int) -> int:
        """Return the length of a state's longest string."""
        return self._lengths[state]

    def count_of(self, state: int) -> int:
        """Return how often a state's strings occurred."""
        return self._counts[state]

    def link_of(self, state: int) -> int:
        """Return the state of the longest suffix with more occurrences; for the empty string itself 0."""
        return max(0, self._links[state])

    def follow(self, state: int, token_id: int) -> int:
        """Return the state of a state's string with one more token; `NOTHING` where that never occurred."""
        if self._tokens[state] == token_id:
            return self._targets[state]
        if self._tokens[state] == _MANY:
            return self._branches[state].get(token_id, NOTHING)
        return NOTHING

    def most_frequent(self, state: int) -> int:
        """Return the token that most often followed, the most recent of equals; `NOTHING` where none did."""
        token_id = self._tokens[state]
        return self._best[state] if token_id == _MANY else token_id

    def _append(self, token_id: int) -> None:
        self.num_tokens += 1
        before = self._last
        state = self._new_state(self._lengths[before] + 1, 0, 0)
        previous = before
        while previous != NOTHING and (found := self.follow(previous, token_id)) == NOTHING:
            self._set(previous, token_id, state)
            previous = self._links[previous]
        if previous != NOTHING:
            self._links[state] = self._suffix_state(previous, found, token_id)
        self._last = state
        self._count(state)
        self._prefer(before, token_id)

    def _suffix_state(self, previous: int, found: int, token_id: int) -> int:
        """Return the state of `previous` + token, split off from the longer `found` if need be."""
        if self._lengths[previous] + 1 == self._lengths[found]:
            return found
        clone = self._new_state(self._lengths[previous] + 1, self._links[found], self._counts[found])
        self._copy_transitions(found, clone)
        self._links[found] = clone
        while previous != NOTHING and self.follow(previous, token_id) == found:
            self._set(previous, token_id, clone)
            previous = self._links[previous]
        return clone

    def _count(self, state: int) -> None:
        for suffix in self._suffixes(state):
            self._counts[suffix] += 1

    def _prefer(self, state: int, token_id: int) -> None:
        """Let a token that followed once more take the place of one that now is no more frequent."""
        for suffix in self._suffixes(state):
            best = self._best.get(suffix, token_id)
            if best != token_id:
                branches = self._branches[suffix]
                if self._counts[branches[token_id]] >= self._counts[branches[best]]:
                    self._best[suffix] = token_id

    def _suffixes(self, state: int) -> Iterator[int]:
        for _ in range(MAX_SUFFIX_DEPTH):
            if state == NOTHING:
                return
            yield state
            state = self._links[state]

    def _new_state(self, length: int, link: int, count: int) -> int:
        self._lengths.append(length)
        self._links.append(link)
        self._counts.append(count)
        self._tokens.append(NOTHING)
        self._targets.append(NOTHING)
        return len(self._links) - 1

    def _set(self, state: int, token_id: int, target: int) -> None:
        known = self._tokens[state]
        if known == _MANY:
            self._branches[state][token_id] = target
        elif known in (NOTHING, token_id):
            self._tokens[state], self._targets[state] = token_id, target
        else:
            self._branches[state] = {known: self._targets[state], token_id: target}
            self._best[state] = known
            self._tokens[state] = _MANY

    def _copy_transitions(self, source: int, target: int) -> None:
        self._tokens[target], self._targets[target] = self._tokens[source], self._targets[source]
        if source in self._branches:
            self._branches[target] = dict(self._branches[source])
            self._best[target] = self._best[source]
