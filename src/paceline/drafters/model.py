"""The draft-model drafter: a small model that runs ahead of the target, all its sequences in one batch.

Its cache follows the sequence by itself. What it has computed for a sequence is remembered as token ids;
at the next call the part that the sequence did not take over is dropped, and the one or two tokens that it
lacks are fed with the first forward pass. So nothing has to be told to it about acceptance or rejection.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from paceline.cache import BlockPool, BlockTable
from paceline.drafters.interface import DraftProposal, DraftRequest
from paceline.errors import GenerationError
from paceline.models.interface import CausalModel, SequenceSlice
from paceline.records import Verification
from paceline.sampling import rejection
from paceline.sampling.choice import choose_with_confidence
from paceline.sampling.distribution import Distribution
from paceline.sampling.processors import process

PREFILL_CHUNK = 512


@dataclass(slots=True)
class _Draft:
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


class ModelDrafter:
    """Proposes the draft model's own continuation, drawn with the target's noise under coupled verification.

    Args:
        model: a causal model over the target's vocabulary; its padding rows are never proposed.
        num_blocks, block_size: size of its own paged cache.
        end_token_ids: tokens after which drafting on is pointless.
    """

    name = "model"

    def __init__(
        self,
        model: CausalModel,
        *,
        num_blocks: int,
        block_size: int,
        end_token_ids: frozenset[int] = frozenset(),
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        self._model = model
        self._pool = BlockPool(num_blocks, block_size)
        self._kv = model.allocate_kv(num_blocks, block_size)
        self._end_token_ids = end_token_ids
        self._prefill_chunk = prefill_chunk
        self._drafts: dict[int, _Draft] = {}

    @property
    def pool(self) -> BlockPool:
        """The draft model's KV blocks."""
        return self._pool

    def num_cached_tokens(self, sequence_id: int) -> int:
        """Return how many positions of a sequence are in the draft cache."""
        draft = self._drafts.get(sequence_id)
        return len(draft.computed_ids) if draft else 0

    def learn(self, scope: Hashable, token_ids: Sequence[int]) -> None:
        """Do nothing: the model is what it is."""

    def forget_answers(self) -> None:
        """Do nothing: there is nothing to forget."""

    def release(self, sequence_id: int) -> None:
        """Forget a sequence and free its blocks."""
        draft = self._drafts.pop(sequence_id, None)
        if draft:
            draft.table.clear()

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """Return one proposal for each request; an empty one where the draft cache has no room for it."""
        active = [(request, draft) for request in requests if (draft := self._begin(request)) is not None]
        self._prefill(active)
        drafting = active
        while drafting:
            logits = self._forward([self._pending(request, draft) for request, draft in drafting])
            for row, (request, draft) in zip(logits, drafting, strict=True):
                self._extend(request, draft, row)
            drafting = [(request, draft) for request, draft in drafting if self._goes_on(request, draft)]
        proposed = {id(request): self._proposal(request, draft) for request, draft in active}
        return [proposed.get(id(request), DraftProposal()) for request in requests]

    def _begin(self, request: DraftRequest) -> _Draft | None:
        draft = self._drafts.get(request.sequence_id)
        if draft is None:
            draft = self._drafts[request.sequence_id] = _Draft(BlockTable(self._pool))
        draft.begin(request.token_ids)
        num_positions = len(request.token_ids) + request.draft_length - 1
        if num_positions > self._model.context_length or not draft.table.reserve(num_positions):
            self.release(request.sequence_id)
            return None
        draft.table.trim(num_positions)
        return draft

    def _prefill(self, active: Sequence[tuple[DraftRequest, _Draft]]) -> None:
        """Compute long gaps chunk by chunk, so that the first draft forward is a small one."""
        for request, draft in active:
            while len(request.token_ids) - len(draft.computed_ids) > self._prefill_chunk:
                start = len(draft.computed_ids)
                chunk = request.token_ids[start : start + self._prefill_chunk]
                self._forward([SequenceSlice(chunk, start, draft.table.block_ids, 0)])
                draft.computed_ids.extend(chunk)

    def _pending(self, request: DraftRequest, draft: _Draft) -> SequenceSlice:
        start = len(draft.computed_ids)
        num_known = len(request.token_ids)
        missing = (
            list(request.token_ids[start:]) if start < num_known else draft.token_ids[start - num_known :]
        )
        draft.computed_ids.extend(missing)
        return SequenceSlice(missing, start, draft.table.block_ids, 1)

    def _forward(self, slices: Sequence[SequenceSlice]) -> np.ndarray:
        with torch.inference_mode():
            return self._model.forward(slices, self._kv).numpy(force=True)

    def _extend(self, request: DraftRequest, draft: _Draft, logits: np.ndarray) -> None:
        """Draw one more token for one sequence from its row of logits [vocab]."""
        try:
            token_id, confidence = self._draw(request, draft, logits)
        except GenerationError:
            # Only the target may fail a request; a draft model without an answer just stops here.
            draft.is_exhausted = True
            return
        draft.confidences.append(confidence)
        draft.token_ids.append(token_id)

    def _draw(self, request: DraftRequest, draft: _Draft, logits: np.ndarray) -> tuple[int, float]:
        state = request.sampling
        if request.verification is not Verification.REJECTION:
            return choose_with_confidence(logits, state, draft.token_ids)
        distribution = process(logits, state, draft.token_ids)
        draft.sampled_from.append(distribution)
        index = state.num_output_tokens + len(draft.token_ids)
        token_id = rejection.draft_sample(distribution, state.seed, index, step_start=state.num_output_tokens)
        return token_id, distribution.prob_of(token_id)

    def _goes_on(self, request: DraftRequest, draft: _Draft) -> bool:
        if draft.is_exhausted or len(draft.token_ids) == request.draft_length:
            return False
        return draft.token_ids[-1] not in self._end_token_ids

    def _proposal(self, request: DraftRequest, draft: _Draft) -> DraftProposal:
        is_sampled = request.verification is Verification.REJECTION
        return DraftProposal(
            tuple(draft.token_ids),
            tuple(draft.confidences),
            tuple(draft.sampled_from) if is_sampled else None,
        )
