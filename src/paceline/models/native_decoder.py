"""The decoder on native kernels: int8 activations, packed weights, float16 KV, one call a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.errors import CapacityError, ConfigError
from paceline.kernels import _native
from paceline.models.decoder_config import DecoderConfig
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.native_weights import NativeWeights
from paceline.models.rotary import frequencies_of

KERNEL_BLOCK = 16
"""Positions in a block of the attention kernel."""
_HALF_BYTES = 2


class NativeKVStore:
    """float16 keys and values; the memory is reserved and not touched until sequences fill it."""

    def __init__(self, model: _native.Model, num_blocks: int, block_size: int) -> None:
        """Reserve the memory.

        Raises:
            ConfigError: blocks are not whole blocks of the attention kernel.
            CapacityError: the machine does not have the memory.
        """
        if block_size % KERNEL_BLOCK:
            raise ConfigError(
                given=f"KV blocks of {block_size} positions",
                expected=f"a multiple of {KERNEL_BLOCK} with native kernels",
                remedy="Set block_size to 16, or kernels to 'reference'",
            )
        self.num_blocks, self.block_size = num_blocks, block_size
        self._ratio = block_size // KERNEL_BLOCK
        try:
            self.native = model.allocate_kv(num_blocks * self._ratio)
        except MemoryError:
            raise CapacityError(
                given=f"{num_blocks} KV blocks of {block_size} positions",
                expected="a KV memory that this machine can hold",
                remedy="Ask for fewer blocks",
            ) from None

    def kernel_blocks(self, block_ids: Sequence[int]) -> Sequence[int]:
        """Return the kernel's blocks that blocks of ours are made of, in order."""
        ratio = self._ratio
        return block_ids if ratio == 1 else [ratio * b + i for b in block_ids for i in range(ratio)]


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

    def allocate_kv(self, num_blocks: int, block_size: int) -> NativeKVStore:
        """Return KV memory for `num_blocks` blocks of `block_size` positions.

        Raises:
            ConfigError: block_size is not a multiple of 16.
            CapacityError: the machine does not have the memory.
        """
        return NativeKVStore(self._model, num_blocks, block_size)

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
        sequences = [
            (item.token_ids, item.start, kv.kernel_blocks(item.block_ids), item.num_logits) for item in slices
        ]
        return torch.from_numpy(self._model.forward(sequences, kv.native))
