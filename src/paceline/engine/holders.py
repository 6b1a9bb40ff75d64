"""The drafters that hold KV blocks and weights, all together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.cache import KVStats
from paceline.drafters.interface import Drafter, HoldsMemory
from paceline.errors import ConfigError
from paceline.models.kv_memory import KVMemory


class Holders:
    """Those of an engine's drafters that hold memory.

    Args:
        drafters: all of them, by name.
    """

    def __init__(self, drafters: Mapping[str, Drafter]) -> None:
        self._holders = {name: d for name, d in drafters.items() if isinstance(d, HoldsMemory)}

    def __iter__(self) -> Iterator[HoldsMemory]:
        """Each of them."""
        return iter(self._holders.values())

    def is_loaded(self, name: str) -> bool:
        """Whether a drafter can propose anything; one that holds nothing always can."""
        return name not in self._holders or self._holders[name].is_loaded

    def get(self, name: str) -> HoldsMemory:
        """Return one by its name.

        Raises:
            ConfigError: there is no drafter of that name, or it holds nothing.
        """
        if name not in self._holders:
            raise ConfigError(
                given=f"drafter {name!r} to load or unload",
                expected="one that has weights: " + (", ".join(map(repr, self._holders)) or "there is none"),
                remedy="Name a drafter with a draft model",
            )
        return self._holders[name]

    def kv_stats(self, memory: KVMemory) -> KVStats:
        """Return who holds the KV memory, given the target's part in it."""
        pool = memory.pool
        return KVStats(
            num_blocks=pool.num_blocks,
            num_used=pool.num_used,
            num_cached=pool.num_cached,
            num_held_by_drafts=sum(holder.num_held_blocks for holder in self),
            peak_num_used=pool.peak_num_used,
            num_prefix_queries=memory.num_prefix_queries,
            num_prefix_hits=memory.num_prefix_hits,
            num_draft_prefix_queries=sum(holder.num_prefix_queries for holder in self),
            num_draft_prefix_hits=sum(holder.num_prefix_hits for holder in self),
        )
