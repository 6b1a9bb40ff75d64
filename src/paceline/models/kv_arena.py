"""The memory of all KV caches: pages of one size, so that a page one model gives back serves any other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import CapacityError
from paceline.kernels.native import native


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What one model asks of a page."""

    bytes_per_token: int
    """Keys and values of one position, all layers."""
    unit_bytes: int
    """A page must be a multiple of this."""


@dataclass(frozen=True, slots=True)
class PagePlan:
    """How large a page is, and how many positions of each model it holds."""

    page_bytes: int
    block_sizes: tuple[int, ...]


def plan_pages(layouts: Sequence[KVLayout], block_size: int) -> PagePlan:
    """Return pages that hold at least `block_size` positions of every model.

    A model with small keys and values has a multiple of `block_size` positions in a page. What is left over
    behind them is less than `block_size` positions of that model.
    """
    unit = math.lcm(*(layout.unit_bytes for layout in layouts))
    most = max(layout.bytes_per_token for layout in layouts) * block_size
    page_bytes = -(-most // unit) * unit
    return PagePlan(
        page_bytes,
        tuple(page_bytes // (layout.bytes_per_token * block_size) * block_size for layout in layouts),
    )


class KVArena:
    """Pages of memory, uint8 [num_pages, page_bytes], which are not touched before something is written.

    So a large arena costs what sequences fill. Every model's store is a view of all pages; who may write to
    which is for the block pool to say.
    """

    def __init__(self, num_pages: int, page_bytes: int, device: torch.device) -> None:
        """Reserve the memory.

        Raises:
            CapacityError: the device does not have it.
        """
        self.num_pages, self.page_bytes, self.device = num_pages, page_bytes, device
        try:
            self.memory = _allocate(num_pages, page_bytes, device)
        except (RuntimeError, MemoryError) as error:
            raise CapacityError(
                given=f"{num_pages} KV blocks of {page_bytes:,} bytes ({str(error) or 'out of memory'})",
                expected=f"a KV memory that {device} can hold",
                remedy="Ask for fewer blocks, or lower kv_memory (--kv-memory)",
            ) from error

    def check(self, layout: KVLayout, block_size: int) -> None:
        """Raise ValueError if pages do not hold blocks of `block_size` positions."""
        if self.page_bytes % layout.unit_bytes or block_size * layout.bytes_per_token > self.page_bytes:
            raise ValueError(f"pages of {self.page_bytes} bytes for blocks of {block_size} times {layout}")


def _allocate(num_pages: int, page_bytes: int, device: torch.device) -> Tensor:
    if device.type == "cpu" and native is not None:
        return torch.from_numpy(native.allocate_pages(num_pages, page_bytes))
    return torch.empty((num_pages, page_bytes), dtype=torch.uint8, device=device)
