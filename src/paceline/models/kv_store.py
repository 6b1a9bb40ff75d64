"""Paged KV memory of one model, and reading it back in the form that attention takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.errors import CapacityError
from paceline.kernels.reference import KV_BLOCK, padded


class PagedKVStore:
    """float32 keys and values, [num_layers, num_blocks, block_size, num_kv_heads, head_dim] each.

    The memory is reserved and not touched, so that a large pool costs only what sequences fill.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
    ) -> None:
        """Reserve the memory.

        Raises:
            CapacityError: the device does not have it.
        """
        shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        try:
            self.keys = torch.empty(shape, dtype=torch.float32, device=device)
            self.values = torch.empty(shape, dtype=torch.float32, device=device)
        except RuntimeError as error:
            raise CapacityError(
                given=f"{num_blocks} KV blocks of {block_size} positions ({error})",
                expected=f"a KV memory that {device} can hold",
                remedy="Ask for fewer blocks",
            ) from error
        self.num_blocks, self.block_size = num_blocks, block_size

    def slots(self, block_ids: Sequence[int], start: int, end: int) -> Tensor:
        """Return where positions start .. end - 1 lie: int64 [end - start], counted over all blocks.

        Raises:
            ValueError: the blocks do not cover the positions, or are not blocks of this store.
        """
        if end > len(block_ids) * self.block_size:
            raise ValueError(f"{len(block_ids)} blocks of {self.block_size} do not cover {end} positions")
        blocks = torch.tensor(block_ids, dtype=torch.int64, device=self.keys.device)
        if min(block_ids, default=0) < 0 or max(block_ids, default=0) >= self.num_blocks:
            raise ValueError(f"block ids {list(block_ids)} outside 0 .. {self.num_blocks - 1}")
        positions = torch.arange(start, end, device=blocks.device)
        return blocks[positions // self.block_size] * self.block_size + positions % self.block_size

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store float32 [n, num_kv_heads, head_dim] keys and values at slots [n]."""
        self.keys[layer].flatten(0, 1)[slots] = keys
        self.values[layer].flatten(0, 1)[slots] = values

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values at slots [n]: float32 [n rounded up to KV_BLOCK, num_kv_heads, head_dim].

        The padding is zeros, since what another sequence left there might not be finite.
        """
        return _gather(self.keys[layer], slots), _gather(self.values[layer], slots)


def _gather(blocks: Tensor, slots: Tensor) -> Tensor:
    num_rows = slots.shape[0]
    out = blocks.new_empty(padded(num_rows, KV_BLOCK), *blocks.shape[2:])
    torch.index_select(blocks.flatten(0, 1), 0, slots, out=out[:num_rows])
    out[num_rows:].zero_()
    return out
