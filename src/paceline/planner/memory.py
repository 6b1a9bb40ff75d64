"""What target, draft model and their KV take of one memory, and how many sequences the draft model costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

from paceline.errors import ConfigError

GB = 1e9
"""Decimal, as data sheets and parameters are counted."""


class MemoryJson(TypedDict):
    """What `paceline plan memory --json` prints."""

    weights_gb: float
    draft_gb: float
    kv_gb: float
    free_gb: float
    fits: bool
    sequences_lost: int | None


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What one model takes."""

    weight_bytes: float
    kv_bytes_per_token: float
    """Keys and values of one position, all layers."""
    block_size: int = 1
    """Positions that are taken at once."""
    block_bytes: float | None = None
    """What a block takes, where that is more than its positions do."""
    workspace_bytes: float = 0.0
    """Of forward passes: states between layers, and logits."""

    def kv_bytes(self, context: int) -> float:
        """Return the bytes of one sequence's KV."""
        block = self.block_bytes or self.kv_bytes_per_token * self.block_size
        return math.ceil(context / self.block_size) * block


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """What is to be held, and in how much.

    Raises:
        ConfigError: a figure is negative, or there is nothing to hold.
    """

    memory_bytes: float
    target: ModelMemory
    draft: ModelMemory | None
    context: int
    """Tokens of each sequence, prompt and answer."""
    sequences: int | None = None
    """That run at once; None is as many as fit."""
    kv_bytes: float | None = None
    """Set aside for the KV of both models; None is what the sequences take."""
    process_bytes: float = 0.0
    """Of the program itself: interpreter, libraries, tokenizers."""

    def __post_init__(self) -> None:
        models = (self.target, *((self.draft,) if self.draft else ()))
        sizes = {
            "memory": self.memory_bytes,
            "weights": min(m.weight_bytes for m in models),
            "KV of a token": min(m.kv_bytes_per_token for m in models),
            "context": self.context,
            "sequences": 1 if self.sequences is None else self.sequences,
        }
        for name, value in sizes.items():
            if not 0 < value < math.inf:
                raise ConfigError(
                    given=f"{name} of {value:g}", expected="more than 0", remedy="Correct that figure"
                )
        if self.kv_bytes is not None and not 0 <= self.kv_bytes < math.inf:
            raise ConfigError(
                given=f"{self.kv_bytes:g} bytes for KV", expected="0 or more", remedy="Correct that figure"
            )


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the memory goes."""

    demand: MemoryDemand
    weight_bytes: float
    draft_bytes: float
    """Weights of the draft model."""
    workspace_bytes: float
    kv_bytes: float
    free_bytes: float
    """Negative by what is lacking."""
    sequences_with_draft: int
    """Most that have their KV in what is set aside for it, or, where nothing is, in what is left."""
    sequences_without_draft: int
    """The same if the draft model's weights, work and KV were the target's KV instead."""

    @property
    def fits(self) -> bool:
        """Whether all of it has room."""
        return self.free_bytes >= 0

    @property
    def sequences_lost(self) -> int:
        """Concurrent sequences that the draft model costs."""
        return self.sequences_without_draft - self.sequences_with_draft

    @property
    def total_bytes(self) -> float:
        """All of it together."""
        return self.demand.memory_bytes - self.free_bytes

    def to_json(self) -> MemoryJson:
        """Return the object that the command prints, in GB."""
        return {
            "weights_gb": _gb(self.weight_bytes),
            "draft_gb": _gb(self.draft_bytes),
            "kv_gb": _gb(self.kv_bytes),
            "free_gb": _gb(self.free_bytes),
            "fits": self.fits,
            "sequences_lost": self.sequences_lost if self.demand.draft else 0,
        }


def plan_memory(demand: MemoryDemand) -> MemoryPlan:
    """Return where the memory goes, and what the draft model costs in sequences of the stated context.

    With KV set aside (`kv_bytes`) sequences are counted in that; without a draft model, its weights and work
    would be added to it. With none set aside, KV may take all that is left.
    """
    target, draft = demand.target, demand.draft
    of_target = target.kv_bytes(demand.context)
    of_both = of_target + (draft.kv_bytes(demand.context) if draft else 0.0)
    draft_bytes = draft.weight_bytes if draft else 0.0
    workspace = target.workspace_bytes + (draft.workspace_bytes if draft else 0.0)
    left = demand.memory_bytes - demand.process_bytes - target.weight_bytes - draft_bytes - workspace
    room = left if demand.kv_bytes is None else demand.kv_bytes
    with_draft = _whole(room / of_both)
    without = _whole((room + draft_bytes + (draft.workspace_bytes if draft else 0.0)) / of_target)
    kv_bytes = demand.kv_bytes
    if kv_bytes is None:
        kv_bytes = (with_draft if demand.sequences is None else demand.sequences) * of_both
    return MemoryPlan(
        demand, target.weight_bytes, draft_bytes, workspace, kv_bytes, left - kv_bytes, with_draft, without
    )


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int, bytes_per_value: float) -> float:
    """Return the bytes of keys and values of one position, all layers.

    Raises:
        ConfigError: a figure is not positive.
    """
    if min(num_layers, num_kv_heads, head_size) < 1 or not bytes_per_value > 0:
        raise ConfigError(
            given=f"{num_layers} layers, {num_kv_heads} KV heads of {head_size}, {bytes_per_value:g} bytes",
            expected="positive figures",
            remedy="Correct them; they are in the model's config.json",
        )
    return 2 * num_layers * num_kv_heads * head_size * bytes_per_value


def _whole(ratio: float) -> int:
    # What is a whole number but for rounding is that number.
    return max(0, math.floor(ratio + 1e-9))


def _gb(num_bytes: float) -> float:
    return round(num_bytes / GB, 6)
