"""The decoder on native kernels: int8 activations, packed weights, float16 KV, one call a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.kernels import _native
from paceline.models.decoder_config import DecoderConfig
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.kv_arena import KVArena, KVLayout
from paceline.models.native_weights import NativeWeights
from paceline.models.rotary import frequencies_of

KERNEL_BLOCK = 16
"""Positions in a block of the attention kernel."""
_HALF_BYTES = 2


class NativeKVStore:
    """float16 keys and values in the pages of an arena."""

    def __init__(self, model: _native.Model, arena: KVArena, block_size: int) -> None:
        """Look at pages that the arena found large enough."""
        self.num_blocks, self.block_size = arena.num_pages, block_size
        self.native = model.kv_in(arena.memory.numpy(), block_size // KERNEL_BLOCK)


class NativeDecoder:
    """A causal language model on the CPU; see `models.interface.CausalModel` for the contract."""

    def __init__(self, config: DecoderConfig, weights: NativeWeights) -> None:
        """Wire packed weights as `config` says."""
        self.config = config
        self._model = _native.Model(
            hidden_size=config.hidden_size,
            inner_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
            embedding_scale=config.embedding_scale,
            score_scale=config.score_scale,
            activation=config.activation.value,
            rotary_layout=config.rotary_layout.value,
            embedding=(weights.embedding.type, weights.embedding.data),
            layers=weights.layers,
            rotaries=[
                (frequencies_of(rotary, config.head_dim, weights.rope_factors), rotary.attention_factor)
                for rotary in weights.rotaries
            ],
            final_norm=weights.final_norm,
            head=weights.head.native,
            head_ids=[] if weights.head_ids is None else weights.head_ids.tolist(),
        )

    @property
    def vocab_size(self) -> int:
        """Width of a row of logits, padding rows included."""
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        """Greatest number of positions the model was made for."""
        return self.config.context_length

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights in memory; the embedding, which stays in its file, is not counted."""
        return self._model.weight_bytes

    @property
    def workspace_bytes(self) -> int:
        """Bytes of memory that forward passes share, as large as the largest so far needed."""
        return self._model.workspace_bytes

    @property
    def native(self) -> _native.Model:
        """The native model, for measurements."""
        return self._model

    def kv_bytes_per_token(self) -> int:
        """Bytes of KV for one position, all layers."""
        return 2 * _HALF_BYTES * self.config.num_layers * self.config.num_kv_heads * self.config.head_dim

    @property
    def kv_layout(self) -> KVLayout:
        """What the model asks of a page of KV memory."""
        return KVLayout(self.kv_bytes_per_token(), self._model.kv_unit_bytes)

    def kv_in(self, arena: KVArena, block_size: int) -> NativeKVStore:
        """Return KV memory in pages that other models may share, `block_size` positions in each.

        Raises:
            ConfigError: block_size is not a multiple of 16.
        """
        _check_block_size(block_size)
        arena.check(self.kv_layout, block_size)
        return NativeKVStore(self._model, arena, block_size)

    def allocate_kv(self, num_blocks: int, block_size: int) -> NativeKVStore:
        """Return KV memory of its own, for `num_blocks` blocks of `block_size` positions.

        Raises:
            ConfigError: block_size is not a multiple of 16.
            CapacityError: the machine does not have the memory.
        """
        _check_block_size(block_size)
        arena = KVArena(num_blocks, block_size * self.kv_bytes_per_token(), torch.device("cpu"))
        return self.kv_in(arena, block_size)

    def workspace_bytes_for(self, num_rows: int, num_logits: int, num_positions: int) -> int:
        """Most bytes that a forward pass takes besides weights and KV, its logits included."""
        return self._model.workspace_bytes_for(num_rows, num_logits, num_positions)

    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> Tensor:
        """Compute all rows of all slices in one pass, writing their KV.

        Returns:
            float32 logits [sum of num_logits, vocab_size], in the order of `slices`; minus infinity for
            tokens that a reduced output layer lacks. The memory is the model's, which uses it again once the
            tensor is dropped: read it, and do not write to it.

        Raises:
            ValueError: token or block ids out of range, or blocks that do not cover the positions.
        """
        if not isinstance(kv, NativeKVStore):
            raise TypeError(f"KV of {type(kv).__name__}; expected what this model's allocate_kv returned")
        sequences = [(item.token_ids, item.start, item.block_ids, item.num_logits) for item in slices]
        return torch.from_numpy(self._model.forward(sequences, kv.native))


def _check_block_size(block_size: int) -> None:
    if block_size % KERNEL_BLOCK:
        raise ConfigError(
            given=f"KV blocks of {block_size} positions",
            expected=f"a multiple of {KERNEL_BLOCK} with native kernels",
            remedy="Set block_size to 16, or kernels to 'reference'",
        )
