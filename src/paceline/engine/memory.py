"""How much memory an engine takes: weights, the work of a step, and one budget of KV for all its models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from paceline.cache import BlockPool
from paceline.config.engine import EngineSettings
from paceline.config.memory import available_memory
from paceline.errors import CapacityError
from paceline.models.interface import CausalModel
from paceline.models.kv_arena import KVArena, PagePlan, plan_pages
from paceline.models.kv_memory import KVMemory

KV_SHARE = 0.25
"""Share of the memory that weights and work leave free which the KV caches take unless told otherwise."""


@dataclass(frozen=True, slots=True)
class ModelRole:
    """A model with what the engine will ask of it."""

    name: str
    model: CausalModel
    most_rows: int
    """Rows of its largest forward pass."""
    most_logits: int
    """Of those, rows whose logits are wanted. A target's may all be: those of drafts, and those of prompts
    whose log-probabilities were asked for."""


def check_weights_fit(sizes: dict[str, int], available: Callable[[], int] = available_memory) -> None:
    """Raise CapacityError, before any is read, if files of these sizes, by name, are more than is free."""
    free = available()
    if sum(sizes.values()) > free:
        raise CapacityError(
            given=", ".join(f"{size:,} bytes of weights of {name}" for name, size in sizes.items()),
            expected=f"at most {free:,} bytes, which is what is free",
            remedy="Free some memory, take smaller models, or leave the draft model out",
        )


def allocate_kv(
    roles: Sequence[ModelRole],
    settings: EngineSettings,
    context_length: int,
    device: torch.device,
    available: Callable[[], int] = available_memory,
) -> list[KVMemory]:
    """Return each model's part of one KV memory; any of them may use all of it.

    Args:
        roles: the target first; their weights are in memory already.
        settings: the budget, and the limits of a step.
        context_length: most positions of one sequence.
        device: where the models are.
        available: how much memory is free, bytes.

    Raises:
        CapacityError: the budget and the work of a step are more than is free, or the budget does not hold a
            single useful sequence.
    """
    plan = plan_pages([role.model.kv_layout for role in roles], settings.block_size)
    num_pages = _num_pages(roles, settings, context_length, plan, available())
    arena, pool = KVArena(num_pages, plan.page_bytes, device), BlockPool(num_pages)
    return [
        KVMemory(role.model.kv_in(arena, block_size), pool, role.name)
        for role, block_size in zip(roles, plan.block_sizes, strict=True)
    ]


def _num_pages(
    roles: Sequence[ModelRole], settings: EngineSettings, context_length: int, plan: PagePlan, free: int
) -> int:
    work = sum(
        role.model.workspace_bytes_for(role.most_rows, role.most_logits, context_length) for role in roles
    )
    budget = _budget(settings, free, work)
    affordable = budget // plan.page_bytes
    needed = -(-(settings.context_length or 2) // plan.block_sizes[0])
    if affordable < needed:
        raise CapacityError(
            given=f"{budget:,} bytes for the KV cache, {plan.page_bytes:,} for each block of "
            f"{plan.block_sizes[0]} tokens",
            expected=f"room for {settings.context_length or 2} tokens of one sequence",
            remedy="Raise kv_memory (--kv-memory) or lower context_length (--context-length)",
        )
    useful = settings.max_num_seqs * sum(-(-context_length // size) for size in plan.block_sizes)
    return min(affordable, useful)


def _budget(settings: EngineSettings, free: int, work: int) -> int:
    """Return the bytes for KV; on a machine without room for it and the work, say so before any traffic."""
    if settings.kv_memory is None:
        return max(0, int((free - work) * KV_SHARE))
    if settings.kv_memory + work > free:
        raise CapacityError(
            given=f"kv_memory = {settings.kv_memory:,} bytes, beside {work:,} bytes for the work of a step",
            expected=f"at most {free:,} bytes together, which is what the weights leave free",
            remedy="Lower kv_memory (--kv-memory), max_num_batched_tokens, or the size of the models",
        )
    return settings.kv_memory
