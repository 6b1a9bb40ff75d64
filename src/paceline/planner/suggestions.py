"""What a memory plan suggests, in sentences with their numbers."""

from __future__ import annotations

from dataclasses import replace

from paceline.planner.memory import GB, MemoryDemand, MemoryPlan, ModelMemory, plan_memory
from paceline.planner.shapes import BYTES_OF

NOTABLE_SHARE = 0.1
"""Of sequences, from which on their loss is worth acting on."""
FOUR_BITS = BYTES_OF["q4_0"]


def suggestions(plan: MemoryPlan, draft_bytes_per_param: float | None = None) -> list[str]:
    """Return sentences, most pressing first.

    Args:
        plan: what came out.
        draft_bytes_per_param: of the draft model's weights as planned; none where that is not known.
    """
    return [*_room(plan), *_draft(plan, draft_bytes_per_param)]


def _room(plan: MemoryPlan) -> list[str]:
    demand = plan.demand
    most = plan_memory(replace(demand, kv_bytes=None, sequences=None)).sequences_with_draft
    fitting = f"{most:,} {_sequences(most)} of {demand.context:,} tokens"
    if not plan.fits:
        found = [f"It lacks {-plan.free_bytes / GB:.2f} GB. What is there has room for {fitting}."]
        if not most:
            found.append("Not even one sequence fits: take smaller weights, or more accelerators.")
        return found
    if demand.kv_bytes is not None and plan.free_bytes > 0:
        return [
            f"What is set aside for KV holds {plan.sequences_with_draft:,}; all that is left would hold "
            f"{fitting}."
        ]
    if demand.sequences is not None and most > demand.sequences:
        return [f"There is room for {fitting}, not for {demand.sequences:,} only."]
    return []


def _draft(plan: MemoryPlan, bytes_per_param: float | None) -> list[str]:
    draft = plan.demand.draft
    if draft is None or not plan.sequences_without_draft:
        return []
    lost, share = plan.sequences_lost, plan.sequences_lost / plan.sequences_without_draft
    of_both = plan.demand.target.kv_bytes(plan.demand.context) + draft.kv_bytes(plan.demand.context)
    of_weights = min(lost, round((draft.weight_bytes + draft.workspace_bytes) / of_both))
    quiet = f" A load that stays below {plan.sequences_with_draft:,} never notices."
    found = [
        f"The draft model costs {lost:,} of {plan.sequences_without_draft:,} sequences ({share:.0%}): about "
        f"{of_weights:,} for its weights, {lost - of_weights:,} for its KV."
        + (quiet if plan.sequences_with_draft else "")
    ]
    if bytes_per_param is not None and bytes_per_param > FOUR_BITS:
        small = replace(draft, weight_bytes=draft.weight_bytes * FOUR_BITS / bytes_per_param)
        other = plan_memory(_with_small_draft(plan, small))
        saved = other.sequences_with_draft - plan.sequences_with_draft
        found.append(
            f"In 4 bits the draft model takes {small.weight_bytes / GB:.2f} GB, which gives {saved:,} "
            f"{_sequences(saved)} back; only acceptance can suffer, so measure that."
        )
    if share >= NOTABLE_SHARE or not plan.fits:
        found.append(
            "Drafts by look-up (suffix) take neither weights nor KV: try them first where answers repeat "
            "their prompts. A draft model across a link gives its memory back, too."
        )
    return found


def _with_small_draft(plan: MemoryPlan, small: ModelMemory) -> MemoryDemand:
    """Return the same demand with less weights for the draft model, and what that saves as KV."""
    demand, draft = plan.demand, plan.demand.draft
    assert draft is not None
    if demand.kv_bytes is None:
        return replace(demand, draft=small)
    return replace(demand, draft=small, kv_bytes=demand.kv_bytes + draft.weight_bytes - small.weight_bytes)


def _sequences(count: int) -> str:
    return "sequence" if count == 1 else "sequences"
