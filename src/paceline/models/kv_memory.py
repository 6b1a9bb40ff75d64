"""One model's part in the KV memory: its store, the pool of its blocks, and what reuse saved it."""

from __future__ import annotations

from collections.abc import Hashable

from paceline.cache import BlockPool, BlockTable
from paceline.models.interface import CausalModel, KVStore


class KVMemory:
    """Blocks of one model, in pages that it may share with others.

    Args:
        store: where keys and values lie.
        pool: says who holds which page; one for all stores of an arena.
        owner: names the content: the model, and whatever else changes what it stores for the same tokens.
    """

    def __init__(self, store: KVStore, pool: BlockPool, owner: Hashable = "model") -> None:
        self.store, self.pool, self.owner = store, pool, owner
        self.num_prefix_queries = 0
        """Tokens of sequences that were looked up when they started."""
        self.num_prefix_hits = 0
        """Of these, tokens whose KV was there already."""

    @classmethod
    def of_its_own(cls, model: CausalModel, num_blocks: int, block_size: int) -> KVMemory:
        """Return memory that no other model has a part in."""
        return cls(model.allocate_kv(num_blocks, block_size), BlockPool(num_blocks))

    @property
    def block_size(self) -> int:
        """Positions in a block."""
        return self.store.block_size

    @property
    def num_positions(self) -> int:
        """Positions in all blocks together."""
        return self.store.num_blocks * self.store.block_size

    def new_table(self, shares: bool = True) -> BlockTable:
        """Return an empty table; one that does not share finds no blocks and lets none be found."""
        return BlockTable(self.pool, self.block_size, self.owner if shares else None)

    def count_prefix(self, num_queries: int, num_hits: int) -> None:
        """Count one sequence's look-up, in tokens."""
        self.num_prefix_queries += num_queries
        self.num_prefix_hits += num_hits
