"""Decisions in words."""

from __future__ import annotations

from paceline.policy.states import PauseReason, Situation


def paused(reason: PauseReason, now: Situation) -> str:
    """Return why a route stops speculating."""
    if reason is PauseReason.SHORT_OUTPUTS:
        length = "too few" if now.output_length is None else f"about {now.output_length:.0f}"
        return f"paused: answers have {length} tokens, which end before drafting has paid for its beginning"
    if reason is PauseReason.MEMORY:
        share = "short" if now.kv_share is None else f"{now.kv_share:.0%} used"
        return f"paused: KV memory is {share} and requests wait; the draft model's part is given back to them"
    return f"paused: {_costs(now)}; {_break_even(now)}"


def resumed(before: PauseReason | None, now: Situation) -> str:
    """Return why a route speculates again."""
    gain = "" if now.speedup is None else f"; {now.speedup:.2f}x of plain decoding is expected"
    if before is PauseReason.MEMORY:
        share = "free again" if now.kv_share is None else f"down to {now.kv_share:.0%} used"
        return f"speculating again: KV memory is {share}{gain}"
    if before is PauseReason.SHORT_OUTPUTS:
        length = "long enough" if now.output_length is None else f"about {now.output_length:.0f} tokens long"
        return f"speculating again: answers are {length}{gain}"
    return f"speculating again: {_costs(now)}; {_break_even(now)}{gain}"


def drifted(slow: float, fast: float, num_tokens: int) -> str:
    """Return what changed about a route's acceptance."""
    word = "fell" if fast < slow else "rose"
    return f"acceptance {word} from {slow:.2f} to {fast:.2f} over the last {num_tokens} verified tokens"


def _costs(now: Situation) -> str:
    sequences = "1 sequence" if now.concurrency == 1 else f"{now.concurrency} concurrent sequences"
    if now.cost_ratio is None:
        return f"at {sequences}"
    each = "each" if now.of_route == now.concurrency else f"for the {now.of_route} of this route"
    return f"at {sequences} verifying {now.rows_each} rows {each} costs {now.cost_ratio:.1f}x one row each"


def _break_even(now: Situation) -> str:
    measured = "not measured yet" if now.acceptance is None else f"measured {now.acceptance:.2f}"
    if now.break_even is None:
        return f"no acceptance would make up for it, {measured}"
    return f"break-even acceptance is {now.break_even:.2f}, {measured}"
