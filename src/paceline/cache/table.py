"""One sequence's list of KV blocks, for one model."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Sequence

from paceline.cache.blocks import BlockPool, ContentKey


class BlockTable:
    """The blocks that hold positions 0 .. capacity - 1 of one sequence, in order.

    Args:
        pool: where blocks come from.
        block_size: positions in a block.
        owner: whose content it is: the model, and whatever else changes what is stored for the same tokens.
            None keeps content to the sequence: nothing is shared.
    """

    def __init__(self, pool: BlockPool, block_size: int, owner: Hashable = None) -> None:
        self._pool = pool
        self._owner = owner
        self.block_size = block_size
        self._block_ids: list[int] = []
        self._num_published = 0
        # Digest i covers the tokens of blocks 0 .. i; a sequence only grows, so they stay right.
        self._digests: list[bytes] = []

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Block ids in order of position."""
        return tuple(self._block_ids)

    @property
    def capacity(self) -> int:
        """Positions that the blocks held can store."""
        return len(self._block_ids) * self.block_size

    def num_missing(self, num_tokens: int) -> int:
        """Return how many blocks more `num_tokens` positions take."""
        return max(0, -(-num_tokens // self.block_size) - len(self._block_ids))

    def reserve(self, num_tokens: int) -> bool:
        """Hold blocks for `num_tokens` positions; all of them, or no more than before and return False."""
        missing = self.num_missing(num_tokens)
        if missing > self._pool.num_free:
            return False
        self._block_ids.extend(self._pool.allocate() for _ in range(missing))
        return True

    def trim(self, num_tokens: int) -> None:
        """Give back the blocks behind the first `num_tokens` positions."""
        keep = -(-num_tokens // self.block_size)
        # From the end, so that of a sequence's blocks the last is the first to be used for something else.
        while len(self._block_ids) > keep:
            self._pool.release(self._block_ids.pop())
        self._num_published = min(self._num_published, keep)

    def clear(self) -> None:
        """Give back every block."""
        self.trim(0)

    @property
    def shares(self) -> bool:
        """Whether blocks are found, and let be found."""
        return self._owner is not None

    def match(self, token_ids: Sequence[int], num_computed: int = 0) -> int:
        """Take over blocks in which what comes next of a sequence is computed already.

        Args:
            token_ids: the sequence.
            num_computed: positions of it that are computed. Blocks held behind them are given back where
                there is one to take over.

        Returns:
            Positions that are computed now; at least the last of `token_ids` is not.
        """
        if self._owner is None or num_computed % self.block_size:
            return num_computed
        for index in range(num_computed // self.block_size, (len(token_ids) - 1) // self.block_size):
            block_id = self._pool.find((self._owner, self._digest(token_ids, index)))
            if block_id is None:
                break
            if index < len(self._block_ids):
                self._pool.release(self._block_ids[index])
                self._block_ids[index] = block_id
            else:
                self._block_ids.append(block_id)
            num_computed = (index + 1) * self.block_size
            self._num_published = index + 1
        return num_computed

    def key_at(self, token_ids: Sequence[int], position: int) -> ContentKey | None:
        """Return the key of the block around a position; none if it is private, or not filled."""
        index = position // self.block_size
        if self._owner is None or (index + 1) * self.block_size > len(token_ids):
            return None
        return self._owner, self._digest(token_ids, index)

    def publish(self, token_ids: Sequence[int], num_computed: int) -> None:
        """Let others find the full blocks among the first `num_computed` positions of `token_ids`."""
        if self._owner is None:
            return
        for index in range(self._num_published, num_computed // self.block_size):
            key = (self._owner, self._digest(token_ids, index))
            self._block_ids[index] = self._pool.publish(self._block_ids[index], key)
            self._num_published = index + 1

    def _digest(self, token_ids: Sequence[int], index: int) -> bytes:
        """Return the digest of all tokens up to the end of block `index`."""
        while len(self._digests) <= index:
            begin = len(self._digests) * self.block_size
            tokens = array("q", token_ids[begin : begin + self.block_size]).tobytes()
            before = self._digests[-1] if self._digests else b""
            self._digests.append(hashlib.sha256(before + tokens).digest())
        return self._digests[index]
