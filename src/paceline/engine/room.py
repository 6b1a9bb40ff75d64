"""Blocks for sequences: what is free, what drafts give back, and what other sequences computed already."""

from __future__ import annotations

from collections.abc import Sequence as Sequences

from paceline.cache.blocks import ContentKey
from paceline.drafters.interface import HoldsMemory
from paceline.engine.sequence import Sequence
from paceline.models.kv_memory import KVMemory


class Room:
    """The target's blocks, and the drafters that hold some of the same pool.

    Drafts only make things faster, so their blocks are had back before anyone waits or gives way for them.
    """

    def __init__(self, memory: KVMemory, holders: Sequences[HoldsMemory]) -> None:
        self._memory = memory
        self._holders = holders
        self._computing: set[ContentKey] = set()

    def begin_step(self) -> None:
        """Forget what the last step computed."""
        self._computing.clear()

    def reserve_free(self, sequence: Sequence, num_tokens: int) -> bool:
        """Hold blocks for `num_tokens` positions if enough are free."""
        return sequence.table.reserve(num_tokens)

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Hold blocks for `num_tokens` positions if enough are free or held by drafts."""
        return self._free(sequence.table.num_missing(num_tokens)) and sequence.table.reserve(num_tokens)

    def admit(self, sequence: Sequence, num_running: int) -> bool:
        """Hold blocks for all tokens of a sequence that waits; those that are computed already are shared."""
        num_known = sequence.table.match(sequence.token_ids)
        # A spare block for each runner, or the newcomer would be pushed out again a few steps later.
        num_needed = sequence.table.num_missing(len(sequence.token_ids)) + num_running
        if not (self._free(num_needed) and sequence.table.reserve(len(sequence.token_ids))):
            sequence.table.clear()
            return False
        sequence.num_computed_tokens = num_known
        if not sequence.was_preempted and sequence.table.shares:
            sequence.num_cached_tokens = num_known
            self._memory.count_prefix(len(sequence.token_ids), num_known)
        return True

    def catch_up(self, sequence: Sequence) -> bool:
        """Take over what others have computed of a prompt meanwhile.

        Returns:
            Whether to go on from there; not if the next block is computed in this very step.
        """
        num_known = sequence.table.match(sequence.token_ids, sequence.num_computed_tokens)
        if not sequence.was_preempted:
            sequence.num_cached_tokens += num_known - sequence.num_computed_tokens
            self._memory.count_prefix(0, num_known - sequence.num_computed_tokens)
        sequence.num_computed_tokens = num_known
        key = sequence.table.key_at(sequence.token_ids, sequence.num_computed_tokens)
        return key is None or key not in self._computing

    def note_computing(self, sequence: Sequence, num_tokens: int) -> None:
        """Say that the step computes so many more tokens of a prompt."""
        start, step = sequence.num_computed_tokens, sequence.table.block_size
        for position in range(start, start + num_tokens + step, step):
            key = sequence.table.key_at(sequence.token_ids, min(position, start + num_tokens - 1))
            if key is not None:
                self._computing.add(key)

    def _free(self, num_blocks: int) -> bool:
        """Have that many blocks free, taking drafts' if that is enough."""
        pool = self._memory.pool
        num_held = sum(holder.num_held_blocks for holder in self._holders)
        if num_blocks > pool.num_free + num_held:
            return False
        while num_blocks > pool.num_free and any(holder.reclaim() for holder in self._holders):
            pass
        return num_blocks <= pool.num_free
