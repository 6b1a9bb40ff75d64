"""KV blocks of a simulated machine: drafts give theirs back first, then the youngest sequence gives way."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.policy.simulation.traffic import SimulatedSequence


class SimulatedMemory:
    """Counts blocks; a draft model's positions take half of the target's.

    Args:
        num_blocks: there are; 0 is as many as it takes.
        block_size: positions of the target in one.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self._size = block_size
        self.num_preemptions = 0

    def num_used(self, running: Sequence[SimulatedSequence]) -> int:
        """Return blocks held by all of them, drafts included."""
        return sum(self._of(s) for s in running) + self.num_of_drafts(running)

    def num_of_drafts(self, running: Sequence[SimulatedSequence]) -> int:
        """Return blocks held by their drafts."""
        return sum(-(-s.num_draft_computed // (2 * self._size)) for s in running)

    def admit(self, sequence: SimulatedSequence, running: Sequence[SimulatedSequence]) -> bool:
        """Say whether a sequence may start; drafts of the youngest make room for it."""
        if not self.num_blocks:
            return True
        needed = -(-(sequence.num_context + 1) // self._size) + len(running)
        while needed > self.num_blocks - self.num_used(running):
            if not self._reclaim(running):
                return False
        return True

    def has_room_for_drafts(self, sequence: SimulatedSequence, running: Sequence[SimulatedSequence]) -> bool:
        """Say whether a sequence may hold draft KV."""
        if not self.num_blocks or sequence.num_draft_computed:
            return True
        needed = -(-sequence.num_context // (2 * self._size)) + len(running)
        return needed <= self.num_blocks - self.num_used(running)

    def make_room(self, running: Sequence[SimulatedSequence]) -> list[SimulatedSequence]:
        """Return the sequences that have to give way, youngest first; drafts go before them."""
        if not self.num_blocks:
            return []
        left, gone = list(running), []
        while len(left) > 1 and self.num_used(left) > self.num_blocks:
            if self._reclaim(left):
                continue
            youngest = max(left, key=lambda s: s.number)
            left.remove(youngest)
            youngest.restart()
            gone.append(youngest)
            self.num_preemptions += 1
        return gone

    def _reclaim(self, running: Sequence[SimulatedSequence]) -> bool:
        holders = [s for s in running if s.num_draft_computed]
        if not holders:
            return False
        max(holders, key=lambda s: s.number).num_draft_computed = 0
        return True

    def _of(self, sequence: SimulatedSequence) -> int:
        computed = sequence.num_context - sequence.num_prompt_left
        return -(-max(computed, 1) // self._size)
