"""The mixed drafter: a suffix match where it is good enough, the draft model elsewhere.

A match costs next to nothing, and where text repeats itself it is right more often than a small model. Which
of the two proposes is settled for each sequence in each step from tokens that stand, never from the proposal,
as rejection verification demands.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from paceline.drafters.interface import Drafter, DraftProposal, DraftRequest
from paceline.drafters.suffix import SuffixDrafter

MIN_MATCH_LENGTH = 8
"""Matches from here on are taken: see `benchmarks/suffix_matches.py` for what shorter ones are worth."""


class MixedDrafter:
    """Asks the suffix drafter first, and the other one for those sequences that it had no good match for.

    Good is what the request's rule says is worth more than the draft model, or where there is none, a long
    match.

    Args:
        suffix: its matches of `min_match_length` tokens and more are taken.
        model: proposes for the rest, all in one batch.
        name: what it is called.
    """

    def __init__(
        self,
        suffix: SuffixDrafter,
        model: Drafter,
        min_match_length: int = MIN_MATCH_LENGTH,
        name: str = "mixed",
    ) -> None:
        self.name = name
        self._suffix = suffix
        self._model = model
        self.min_match_length = min_match_length

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """Return one proposal for each request, in order."""
        proposals = [self._from_suffix(request) for request in requests]
        rest = [request for request, found in zip(requests, proposals, strict=True) if not found.token_ids]
        modelled = iter(self._model.propose(rest)) if rest else iter(())
        return [
            replace(found, source=self._suffix.name)
            if found.token_ids
            else replace(next(modelled), source=self._model.name)
            for found in proposals
        ]

    def learn(self, scope: Hashable, token_ids: Sequence[int]) -> None:
        """Let both learn."""
        self._suffix.learn(scope, token_ids)
        self._model.learn(scope, token_ids)

    def forget_answers(self) -> None:
        """Let both forget what they learned."""
        self._suffix.forget_answers()
        self._model.forget_answers()

    def release(self, sequence_id: int) -> None:
        """Let both forget a sequence."""
        self._suffix.release(sequence_id)
        self._model.release(sequence_id)

    def _from_suffix(self, request: DraftRequest) -> DraftProposal:
        match = self._suffix.match(request)
        if request.rule is not None:
            # Measured worth settles it. What it looks at is a function of the tokens that stand.
            found = self._suffix.propose_from(match, request.draft_length)
            is_taken = request.rule.prefers_match(request.sequence_id, found.confidences)
            return found if is_taken else DraftProposal()
        if match.length < self.min_match_length:
            return DraftProposal()
        return self._suffix.propose_from(match, request.draft_length)
