"""Sequences that steps pass over."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.engine.sequence import Sequence, SequenceStatus
from paceline.step_records import Stall


def find_stalls(sequences: Iterable[Sequence], now: float, after_s: float) -> list[Stall]:
    """Return those for which nothing was computed for `after_s` seconds or longer, at the time `now`."""
    return [
        Stall(
            sequence.request.id,
            sequence.index,
            now - sequence.progressed_at,
            is_waiting=sequence.status is SequenceStatus.WAITING,
            is_step_stuck=False,
        )
        for sequence in sequences
        if now - sequence.progressed_at >= after_s
    ]
