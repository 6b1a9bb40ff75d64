"""What the engine asks of a model, real or scripted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline.models.kv_arena import KVArena, KVLayout


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """The rows that one sequence brings to a forward pass: consecutive positions from `start`."""

    token_ids: Sequence[int]
    """Tokens to compute, one row each."""
    start: int
    """Position of the first row; KV for all positions before it is in the cache."""
    block_ids: Sequence[int]
    """KV blocks that cover positions 0 .. start + len(token_ids) - 1, in order."""
    num_logits: int
    """Logits are wanted for this many of the last rows; 0 for a prefill chunk that is not the last."""

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + len(self.token_ids)


class KVStore(Protocol):
    """A model's paged KV memory, opaque to the engine: the model that made it reads and writes it."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""

    @property
    def block_size(self) -> int:
        """Token positions in a block."""


class CausalModel(Protocol):
    """A decoder-only language model over a paged cache.

    Implementations promise that a row's logits are bit-equal however the rows around it are batched,
    chunked or padded; the exactness of speculation rests on it.
    """

    @property
    def vocab_size(self) -> int:
        """Width of a row of logits, padding rows included."""

    @property
    def context_length(self) -> int:
        """Greatest number of positions the model was made for."""

    def kv_bytes_per_token(self) -> int:
        """Bytes of KV for one position, all layers."""

    @property
    def kv_layout(self) -> KVLayout:
        """What the model asks of a page of KV memory."""

    def kv_in(self, arena: KVArena, block_size: int) -> KVStore:
        """Return KV memory in pages that other models may share, `block_size` positions in each."""

    def allocate_kv(self, num_blocks: int, block_size: int) -> KVStore:
        """Return KV memory of its own, for `num_blocks` blocks of `block_size` positions."""

    def workspace_bytes_for(self, num_rows: int, num_logits: int, num_positions: int) -> int:
        """Most bytes that a forward pass takes besides weights and KV, its logits included.

        Args:
            num_rows, num_logits: of the whole pass.
            num_positions: of its longest sequence.
        """

    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        """Compute all rows of all slices in one pass, writing their KV.

        Returns:
            float32 logits [sum of num_logits, vocab_size], in the order of `slices`.
        """


class Vocabulary(Protocol):
    """What the engine needs to know of a model's tokens."""

    @property
    def num_real_tokens(self) -> int:
        """Ids from this number up are padding rows: never sampled, never proposed."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer, as the model's file says."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; none for control tokens."""
