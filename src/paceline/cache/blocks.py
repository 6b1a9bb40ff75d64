"""The pool of KV blocks, counted by references so that blocks can be shared."""

from __future__ import annotations

from paceline.errors import CapacityError


class BlockPool:
    """Hands out block ids 0 .. num_blocks - 1 and takes them back.

    The invariant at every moment: free + used = num_blocks, and a used block has at least one reference.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise CapacityError(
                given=f"a KV pool of {num_blocks} blocks of {block_size} positions",
                expected="at least one block of at least one position",
                remedy="Give the KV cache more memory",
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Popped from the end, so blocks leave in rising order at first: easier to read in a test or a dump.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self.peak_num_used = 0
        """Most blocks that were in use at once."""

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` positions take."""
        return -(-num_tokens // self.block_size)

    def allocate(self) -> int:
        """Return a free block with one reference; raises CapacityError if there is none."""
        if not self._free:
            raise CapacityError(
                given=f"all {self.num_blocks} KV blocks in use",
                expected="a free block",
                remedy="Release a sequence first, or give the KV cache more memory",
            )
        block_id = self._free.pop()
        self._references[block_id] = 1
        self.peak_num_used = max(self.peak_num_used, self.num_used)
        return block_id

    def retain(self, block_id: int) -> None:
        """Add a reference to a used block."""
        if self._references[block_id] < 1:
            raise ValueError(f"block {block_id} is free: it cannot be shared")
        self._references[block_id] += 1

    def release(self, block_id: int) -> None:
        """Drop a reference; the last one frees the block."""
        if self._references[block_id] < 1:
            raise ValueError(f"block {block_id} is free already")
        self._references[block_id] -= 1
        if self._references[block_id] == 0:
            self._free.append(block_id)

    def reset_peak(self) -> None:
        """Count the most blocks in use from now on."""
        self.peak_num_used = self.num_used
