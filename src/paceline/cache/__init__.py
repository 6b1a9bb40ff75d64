"""Paged KV bookkeeping: which blocks hold which positions of which sequence. No tensors here."""

from paceline.cache.blocks import BlockPool
from paceline.cache.stats import KVStats
from paceline.cache.table import BlockTable

__all__ = ["BlockPool", "BlockTable", "KVStats"]
