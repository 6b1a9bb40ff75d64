"""The suffix drafter: where the end of a sequence occurred before, and what followed there.

Known as prompt lookup decoding (Saxena, 2023) within one sequence, and with counts over earlier answers as
SuffixDecoding (Oliaro et al., arXiv 2411.04975). Each token of a sequence is read once, in constant amortised
time, whatever the length of the sequence and of the answers in store.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.interface import DraftProposal, DraftRequest
from paceline.drafters.suffix_automaton import SuffixAutomaton
from paceline.drafters.suffix_match import MatchCursor, SuffixMatch

MIN_MATCH_LENGTH = 2
"""A single repeated token says too little: one match in three or four is followed by the same token."""


@dataclass(slots=True)
class _History:
    """What was read of one sequence."""

    own: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    cursors: dict[SuffixAutomaton, MatchCursor] = field(default_factory=dict)
    """For each text of earlier answers, where the sequence's end occurs in it."""

    def read(self, token_ids: Sequence[int], answers: Sequence[SuffixAutomaton]) -> SuffixMatch:
        """Read what is new, and return the longest match; of equals the sequence's own, then the latest."""
        self.own.extend(token_ids[self.own.num_tokens :])
        best = SuffixMatch(self.own, *self.own.repeat, is_own=True)
        self.cursors = {text: self.cursors.get(text) or MatchCursor(text) for text in answers}
        for cursor in reversed(self.cursors.values()):
            match = cursor.move(token_ids)
            if match.length > best.length:
                best = match
        return best


class SuffixDrafter:
    """Proposes what most often followed the longest match of a sequence's end, in itself or earlier answers.

    Args:
        min_match_length: shorter matches propose nothing.
        answers: earlier answers; none looks into the sequence alone.
    """

    name = "suffix"

    def __init__(self, min_match_length: int = MIN_MATCH_LENGTH, answers: AnswerStore | None = None) -> None:
        if min_match_length < 1:
            raise ValueError(f"a match needs at least one token: {min_match_length}")
        self.min_match_length = min_match_length
        self._answers = answers
        self._histories: dict[int, _History] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """Return one proposal for each request; empty where no match is long enough."""
        return [self.propose_from(self.match(request), request.draft_length) for request in requests]

    def match(self, request: DraftRequest) -> SuffixMatch:
        """Read what is new of a sequence, and return the longest match of its end."""
        history = self._histories.setdefault(request.sequence_id, _History())
        texts = () if self._answers is None else self._answers.texts(request.scope)
        return history.read(request.token_ids, texts)

    def propose_from(self, match: SuffixMatch, draft_length: int) -> DraftProposal:
        """Return the proposal of a match."""
        return DraftProposal(*match.continuation(draft_length, self.min_match_length))

    def learn(self, scope: Hashable, token_ids: Sequence[int]) -> None:
        """Keep an answer for later drafts of its scope."""
        if self._answers is not None:
            self._answers.add(scope, token_ids)

    def forget_answers(self) -> None:
        """Empty the store."""
        if self._answers is not None:
            self._answers.clear()

    def release(self, sequence_id: int) -> None:
        """Forget a sequence."""
        self._histories.pop(sequence_id, None)
