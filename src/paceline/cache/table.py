"""One sequence's list of KV blocks."""

from __future__ import annotations

from paceline.cache.blocks import BlockPool


class BlockTable:
    """The blocks that hold positions 0 .. capacity - 1 of one sequence, in order."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_ids: list[int] = []

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Block ids in order of position."""
        return tuple(self._block_ids)

    @property
    def capacity(self) -> int:
        """Positions that the blocks held can store."""
        return len(self._block_ids) * self._pool.block_size

    def reserve(self, num_tokens: int) -> bool:
        """Hold blocks for `num_tokens` positions; all of them, or none and return False."""
        missing = self._pool.blocks_for(num_tokens) - len(self._block_ids)
        if missing > self._pool.num_free:
            return False
        self._block_ids.extend(self._pool.allocate() for _ in range(missing))
        return True

    def trim(self, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` positions."""
        keep = self._pool.blocks_for(num_tokens)
        while len(self._block_ids) > keep:
            self._pool.release(self._block_ids.pop())

    def clear(self) -> None:
        """Give back every block."""
        self.trim(0)
