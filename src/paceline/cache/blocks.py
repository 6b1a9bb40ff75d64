"""The pool of KV blocks: counted by references so that blocks can be shared, remembered by content.

A block that nobody holds any more keeps what is in it. Whoever needs the same content again finds it by its
key, until the block is needed for something else. Of the blocks that nobody holds, those of no known content
go first, then the one that was used the longest time ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from paceline.errors import CapacityError

ContentKey = tuple[Hashable, bytes]
"""Whose content it is (a model), and a digest of it with all that comes before."""


class BlockPool:
    """Hands out block ids 0 .. num_blocks - 1 and takes them back.

    At every moment free + used = num_blocks; a used block has at least one reference, and those of the free
    ones whose content is known are cached.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise CapacityError(
                given=f"a KV pool of {num_blocks} blocks",
                expected="at least one block",
                remedy="Give the KV cache more memory",
            )
        self.num_blocks = num_blocks
        # Popped from the end, so blocks leave in rising order at first: easier to read in a test or a dump.
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._references = [0] * num_blocks
        self._key_of: dict[int, ContentKey] = {}
        self._block_of: dict[ContentKey, int] = {}
        self.peak_num_used = 0
        """Most blocks that were in use at once."""

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, cached ones among them."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Free blocks whose content can be found again."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self.num_free

    def allocate(self) -> int:
        """Return a free block with one reference; raises CapacityError if there is none."""
        if self._blank:
            block_id = self._blank.pop()
        elif self._cached:
            block_id, _ = self._cached.popitem(last=False)
            del self._block_of[self._key_of.pop(block_id)]
        else:
            raise CapacityError(
                given=f"all {self.num_blocks} KV blocks in use",
                expected="a free block",
                remedy="Release a sequence first, or give the KV cache more memory",
            )
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
        if self._references[block_id] > 0:
            return
        if block_id in self._key_of:
            self._cached[block_id] = None
        else:
            self._blank.append(block_id)

    def find(self, key: ContentKey) -> int | None:
        """Return a block with this content and one more reference, or none."""
        block_id = self._block_of.get(key)
        if block_id is None:
            return None
        self._cached.pop(block_id, None)
        self._references[block_id] += 1
        self.peak_num_used = max(self.peak_num_used, self.num_used)
        return block_id

    def publish(self, block_id: int, key: ContentKey) -> int:
        """Make a used block's content findable; nothing may be written to it from now on.

        Returns:
            The block to hold: another one, in its place, where there is one of the same content.
        """
        if self._references[block_id] < 1:
            raise ValueError(f"block {block_id} is free: it has no content")
        known = self.find(key)
        if known is not None:
            self.release(block_id)
            return known
        self._key_of[block_id] = key
        self._block_of[key] = block_id
        return block_id

    def forget(self, owner: Hashable = None) -> None:
        """Drop what is known of one owner's blocks, or of all; used ones stay with those who hold them."""
        for key, block_id in list(self._block_of.items()):
            if owner is not None and key[0] != owner:
                continue
            del self._block_of[key], self._key_of[block_id]
            if block_id in self._cached:
                del self._cached[block_id]
                self._blank.append(block_id)

    def reset_peak(self) -> None:
        """Count the most blocks in use from now on."""
        self.peak_num_used = self.num_used
