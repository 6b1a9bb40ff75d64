"""What is said to others of the KV memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVStats:
    """Who holds an engine's KV memory, in blocks, and what reuse has saved, in tokens."""

    num_blocks: int
    num_used: int
    """Held by sequences, drafts included."""
    num_cached: int
    """Held by nobody, and found again by the next request that begins with the same tokens."""
    num_held_by_drafts: int
    """Of the used ones, those of drafts; blocks that sequences share count for each."""
    peak_num_used: int
    num_prefix_queries: int
    """Tokens of requests when they started."""
    num_prefix_hits: int
    """Of these, tokens whose KV was there already."""
    num_draft_prefix_queries: int
    """The same for draft models."""
    num_draft_prefix_hits: int
