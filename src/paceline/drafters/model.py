"""The draft-model drafter: a small model that runs ahead of the target, all its sequences in one batch.

Its cache follows the sequence by itself. What it has computed for a sequence is remembered as token ids;
at the next call the part that the sequence did not take over is dropped, and the one or two tokens that it
lacks are fed with the first forward pass. So nothing has to be told to it about acceptance or rejection.

Its blocks can be had back at any time, and its weights too: what was computed is computed again when there is
room, and until then the sequence decodes without drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import torch

from paceline.cache import BlockPool
from paceline.drafters.interface import DraftProposal, DraftRequest, ScoreRequest
from paceline.drafters.model_draft import ModelDraft, worthwhile
from paceline.errors import ConfigError, GenerationError
from paceline.models.interface import CausalModel, SequenceSlice
from paceline.models.kv_memory import KVMemory
from paceline.models.pages import release_free_memory
from paceline.records import Verification
from paceline.sampling import rejection
from paceline.sampling.choice import choose_with_confidence
from paceline.sampling.processors import process

PREFILL_CHUNK = 128
"""Rows of prompts in one forward pass: a step that all sequences share waits for them."""
MOST_CATCH_UP = 8
"""Tokens that a sequence may lack and still draft whatever else there is to do."""


class ModelDrafter:
    """Proposes the draft model's own continuation, drawn with the target's noise under coupled verification.

    Args:
        model: a causal model over the target's vocabulary; its padding rows are never proposed.
        memory: its blocks, perhaps in the target's pages.
        end_token_ids: tokens after which drafting on is pointless.
        prefill_chunk: most rows of a forward pass over a prompt.
        reload: loads the model's weights again, to the same bits; without it they cannot be unloaded.
        name: what it is called.
    """

    def __init__(
        self,
        model: CausalModel,
        memory: KVMemory,
        *,
        end_token_ids: frozenset[int] = frozenset(),
        prefill_chunk: int = PREFILL_CHUNK,
        reload: Callable[[], CausalModel] | None = None,
        name: str = "model",
    ) -> None:
        self.name = name
        self._model: CausalModel | None = model
        self._memory = memory
        self._end_token_ids = end_token_ids
        self._prefill_chunk = prefill_chunk
        self._reload = reload
        self._drafts: dict[int, ModelDraft] = {}
        self._pass_rows: list[int] = []

    @property
    def pool(self) -> BlockPool:
        """The pool that the draft model's KV blocks come from."""
        return self._memory.pool

    @property
    def num_held_blocks(self) -> int:
        """Blocks that sequences hold, those they share counted for each."""
        return sum(len(draft.table.block_ids) for draft in self._drafts.values())

    @property
    def num_prefix_queries(self) -> int:
        """Tokens of sequences that were looked up when they started."""
        return self._memory.num_prefix_queries

    @property
    def num_prefix_hits(self) -> int:
        """Of these, tokens whose draft KV was there already."""
        return self._memory.num_prefix_hits

    @property
    def is_loaded(self) -> bool:
        """Whether the weights are in memory; without them nothing is proposed."""
        return self._model is not None

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

    def reclaim(self) -> bool:
        """Give back the blocks of the youngest sequence that holds some; False if none does."""
        if not self._drafts:
            return False
        self.release(max(self._drafts))
        return True

    def take_pass_rows(self) -> list[int]:
        """Return the rows of each forward pass since the last call."""
        rows, self._pass_rows = self._pass_rows, []
        return rows

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[tuple[float, bool], ...]]:
        """Read what is lacking of each sequence, and say at each output token what would have been drafted.

        Returns:
            See `ScoresText.score`; nothing where there is no room, or the prompt is not read to its end yet.
        """
        if self._model is None:
            return [() for _ in requests]
        return [self._score(request) for request in requests]

    def _score(self, request: ScoreRequest) -> tuple[tuple[float, bool], ...]:
        asked = DraftRequest(request.sequence_id, request.token_ids, 1, request.replay, Verification.COUPLED)
        draft = self._begin(asked, num_spare=1)
        if draft is None:
            return ()
        # The last token has no successor yet that it could be judged by.
        begin = len(draft.computed_ids)
        end = min(len(request.token_ids) - 1, begin + (request.most_rows or self._prefill_chunk))
        first = max(begin, request.num_prompt_tokens - 1)
        if end <= begin:
            return ()
        piece = self._known(asked, draft, end - begin, num_logits=max(0, end - first))
        logits = self._forward([piece])
        replay, scored = request.replay, []
        replay.append(request.token_ids[request.num_prompt_tokens : first + 1])
        for position, row in zip(range(first, end), logits, strict=True):
            token_id, confidence = choose_with_confidence(row, replay)
            stands = request.token_ids[position + 1]
            scored.append((confidence, token_id == stands))
            replay.append((stands,))
        return tuple(scored)

    def forget_prefixes(self) -> None:
        """Forget what is cached of sequences that are gone."""
        self.pool.forget(self._memory.owner)

    def unload(self) -> None:
        """Drop the weights, every sequence's blocks, and what is cached.

        Raises:
            ConfigError: there is no way to have the weights again.
        """
        if self._reload is None:
            raise ConfigError(
                given="a draft model to unload that came without its file",
                expected="one that can be loaded again",
                remedy="Make the ModelDrafter with reload=",
            )
        while self.reclaim():
            pass
        self.forget_prefixes()
        self._model = None
        release_free_memory()

    def load(self) -> None:
        """Have the weights again; proposals are what they would have been."""
        if self._model is None and self._reload is not None:
            self._model = self._reload()
            release_free_memory()

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """Return one proposal for each request.

        An empty one where the draft cache has no room for it, or where a long prompt is not computed yet:
        each call computes a chunk of it, lest the others wait for all of it.
        """
        if self._model is None:
            return [DraftProposal() for _ in requests]
        begun = [(request, self._begin(request, num_spare=len(requests))) for request in requests]
        active = [(request, draft) for request, draft in begun if draft is not None]
        drafting, chunks = self._share_prefill(active)
        while drafting or chunks:
            logits = self._forward([self._pending(request, draft) for request, draft in drafting] + chunks)
            for row, (request, draft) in zip(logits, drafting, strict=True):
                self._extend(request, draft, row)
            drafting = worthwhile([one for one in drafting if self._goes_on(*one)], self.name)
            chunks = []
        proposed = {id(request): self._proposal(request, draft) for request, draft in active}
        return [proposed.get(id(request), DraftProposal()) for request in requests]

    def _begin(self, request: DraftRequest, num_spare: int) -> ModelDraft | None:
        """Hold blocks for a proposal, and for a new sequence only if a spare one stays free for everybody.

        Else the target would need them within a few steps, and what was computed would have been for nothing.
        """
        assert self._model is not None
        draft = self._drafts.get(request.sequence_id) or self._begin_sequence(request)
        draft.begin(request.token_ids)
        draft.table.publish(request.token_ids, draft.num_confirmed)
        num_positions = len(request.token_ids) + request.draft_length - 1
        spare = 0 if draft.has_begun else num_spare
        has_room = draft.table.num_missing(num_positions) + spare <= self.pool.num_free
        if num_positions > self._model.context_length or not has_room:
            self.release(request.sequence_id)
            return None
        draft.table.reserve(num_positions)
        draft.table.trim(num_positions)
        if not draft.has_begun:
            self._memory.count_prefix(len(request.token_ids), draft.num_confirmed)
            draft.has_begun = True
        return draft

    def _begin_sequence(self, request: DraftRequest) -> ModelDraft:
        draft = self._drafts[request.sequence_id] = ModelDraft(self._memory.new_table())
        draft.num_confirmed = draft.table.match(request.token_ids)
        draft.computed_ids = list(request.token_ids[: draft.num_confirmed])
        return draft

    def _share_prefill(
        self, active: Sequence[tuple[DraftRequest, ModelDraft]]
    ) -> tuple[list[tuple[DraftRequest, ModelDraft]], list[SequenceSlice]]:
        """Return who can draft now, and chunks to compute for those who cannot yet; small gaps come first."""
        rows_left = self._prefill_chunk
        drafting, chunks = [], []
        for request, draft in sorted(
            active, key=lambda one: len(one[0].token_ids) - len(one[1].computed_ids)
        ):
            num_missing = len(request.token_ids) - len(draft.computed_ids)
            if num_missing <= max(rows_left, MOST_CATCH_UP):
                drafting.append((request, draft))
            elif rows_left > 0:
                chunks.append(self._known(request, draft, rows_left, num_logits=0))
            rows_left -= num_missing
        return drafting, chunks

    def _pending(self, request: DraftRequest, draft: ModelDraft) -> SequenceSlice:
        start, num_known = len(draft.computed_ids), len(request.token_ids)
        if start < num_known:
            return self._known(request, draft, num_known - start, num_logits=1)
        drafted = draft.token_ids[start - num_known :]
        draft.computed_ids.extend(drafted)
        return SequenceSlice(drafted, start, draft.table.block_ids, 1)

    def _known(
        self, request: DraftRequest, draft: ModelDraft, num_tokens: int, num_logits: int
    ) -> SequenceSlice:
        start = len(draft.computed_ids)
        token_ids = list(request.token_ids[start : start + num_tokens])
        draft.computed_ids.extend(token_ids)
        return SequenceSlice(token_ids, start, draft.table.block_ids, num_logits)

    def _forward(self, slices: Sequence[SequenceSlice]) -> np.ndarray:
        assert self._model is not None
        self._pass_rows.append(sum(len(piece.token_ids) for piece in slices))
        with torch.inference_mode():
            return self._model.forward(slices, self._memory.store).numpy(force=True)

    def _extend(self, request: DraftRequest, draft: ModelDraft, logits: np.ndarray) -> None:
        """Draw one more token for one sequence from its row of logits [vocab]."""
        try:
            token_id, confidence = self._draw(request, draft, logits)
        except GenerationError:
            # Only the target may fail a request; a draft model without an answer just stops here.
            draft.is_exhausted = True
            return
        draft.confidences.append(confidence)
        draft.token_ids.append(token_id)

    def _draw(self, request: DraftRequest, draft: ModelDraft, logits: np.ndarray) -> tuple[int, float]:
        state = request.sampling
        if request.verification is not Verification.REJECTION:
            return choose_with_confidence(logits, state, draft.token_ids)
        distribution = process(logits, state, draft.token_ids)
        draft.sampled_from.append(distribution)
        index = state.num_output_tokens + len(draft.token_ids)
        token_id = rejection.draft_sample(distribution, state.seed, index, step_start=state.num_output_tokens)
        return token_id, distribution.prob_of(token_id)

    def _goes_on(self, request: DraftRequest, draft: ModelDraft) -> bool:
        if draft.is_exhausted or len(draft.token_ids) == request.draft_length:
            return False
        return draft.token_ids[-1] not in self._end_token_ids

    def _proposal(self, request: DraftRequest, draft: ModelDraft) -> DraftProposal:
        is_sampled = request.verification is Verification.REJECTION
        return DraftProposal(
            tuple(draft.token_ids),
            tuple(draft.confidences),
            tuple(draft.sampled_from) if is_sampled else None,
        )
