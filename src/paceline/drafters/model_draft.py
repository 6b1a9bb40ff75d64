"""What a draft model holds of one sequence, and which of its drafts are worth going on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.cache import BlockTable
from paceline.drafters.interface import DraftRequest
from paceline.sampling.distribution import Distribution


@dataclass(slots=True)
class ModelDraft:
    """What the draft model holds and proposes for one sequence."""

    table: BlockTable
    computed_ids: list[int] = field(default_factory=list)
    """Tokens whose KV is in the cache, by position."""
    num_confirmed: int = 0
    """Of these, how many are known to be the sequence's own."""
    token_ids: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    sampled_from: list[Distribution] = field(default_factory=list)
    is_exhausted: bool = False
    """Whether the draft model had no token to offer."""
    has_begun: bool = False
    """Whether it was given its blocks once."""

    def begin(self, sequence_ids: Sequence[int]) -> None:
        """Drop what the sequence did not take over, and start a new proposal."""
        # The last token is always fed again: its logits are what the first draft is drawn from.
        limit = min(len(self.computed_ids), len(sequence_ids) - 1)
        agreed = min(self.num_confirmed, limit)
        while agreed < limit and self.computed_ids[agreed] == sequence_ids[agreed]:
            agreed += 1
        del self.computed_ids[agreed:]
        self.num_confirmed = agreed
        self.token_ids, self.confidences, self.sampled_from = [], [], []
        self.is_exhausted = False


def worthwhile(
    drafting: list[tuple[DraftRequest, ModelDraft]], model: str
) -> list[tuple[DraftRequest, ModelDraft]]:
    """Return those whose next token is worth its cost, by the draft model of that name; all of them where
    there is no rule."""
    rule = drafting[0][0].rule if drafting else None
    if rule is None:
        return drafting
    drawn = [(request.sequence_id, draft.confidences[-1]) for request, draft in drafting]
    goes_on = rule.going_on(drawn, model)
    return [one for one, goes in zip(drafting, goes_on, strict=True) if goes]
