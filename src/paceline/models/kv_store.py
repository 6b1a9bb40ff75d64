"""Paged KV memory of one model, and reading it back in the form that attention takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.kernels.reference import KV_BLOCK, padded
from paceline.models.kv_arena import KVArena

FLOAT_BYTES = 4


class PagedKVStore:
    """float32 keys and values in the pages of an arena: [num_layers, keys and values, block_size] rows of
    [num_kv_heads, head_dim] in each page, and what is left over.

    A page is whole rows, so from a layer's first row that of any position is the same number of rows away.
    """

    def __init__(self, arena: KVArena, block_size: int, num_kv_heads: int, head_dim: int) -> None:
        """Look at pages that the arena found large enough."""
        self.num_blocks, self.block_size = arena.num_pages, block_size
        self._rows_per_page = arena.page_bytes // (num_kv_heads * head_dim * FLOAT_BYTES)
        self.rows = arena.memory.view(-1).view(torch.float32).view(-1, num_kv_heads, head_dim)

    def slots(self, block_ids: Sequence[int], start: int, end: int) -> Tensor:
        """Return where positions start .. end - 1 lie: int64 [end - start], rows from a layer's first.

        Raises:
            ValueError: the blocks do not cover the positions, or are not blocks of this store.
        """
        if end > len(block_ids) * self.block_size:
            raise ValueError(f"{len(block_ids)} blocks of {self.block_size} do not cover {end} positions")
        blocks = torch.tensor(block_ids, dtype=torch.int64, device=self.rows.device)
        if min(block_ids, default=0) < 0 or max(block_ids, default=0) >= self.num_blocks:
            raise ValueError(f"block ids {list(block_ids)} outside 0 .. {self.num_blocks - 1}")
        positions = torch.arange(start, end, device=blocks.device)
        return blocks[positions // self.block_size] * self._rows_per_page + positions % self.block_size

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store float32 [n, num_kv_heads, head_dim] keys and values at slots [n]."""
        self._keys(layer)[slots] = keys
        self._values(layer)[slots] = values

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values at slots [n]: float32 [n rounded up to KV_BLOCK, num_kv_heads, head_dim].

        The padding is zeros, since what another sequence left there might not be finite.
        """
        return _gather(self._keys(layer), slots), _gather(self._values(layer), slots)

    def _keys(self, layer: int) -> Tensor:
        return self.rows[2 * layer * self.block_size :]

    def _values(self, layer: int) -> Tensor:
        return self.rows[(2 * layer + 1) * self.block_size :]


def _gather(rows: Tensor, slots: Tensor) -> Tensor:
    num_rows = slots.shape[0]
    out = rows.new_empty(padded(num_rows, KV_BLOCK), *rows.shape[1:])
    torch.index_select(rows, 0, slots, out=out[:num_rows])
    out[num_rows:].zero_()
    return out
