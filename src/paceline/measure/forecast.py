"""How long a closed loop would take without speculation, from step costs alone.

Speculation changes more than the steps: sequences that end sooner leave room for prompts sooner, so that
other steps have other batches. A counterfactual at equal batch misses that. Here the whole run is made again
on paper, with the engine's own rules for who takes part in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.scheduler import SchedulerLimits
from paceline.policy.step_costs import StepCosts


@dataclass(slots=True)
class _Request:
    num_prompt: int
    num_output: int
    submitted_at: float = 0.0
    first_token_at: float = 0.0
    num_computed: int = 0
    num_emitted: int = 0

    @property
    def context(self) -> int:
        return self.num_computed + max(0, self.num_emitted - 1)


def plain_seconds(
    costs: StepCosts,
    lengths: Sequence[tuple[int, int]],
    concurrency: int,
    limits: SchedulerLimits | None = None,
) -> float:
    """Return the seconds of answering requests in a closed loop without drafts, an estimate.

    Args:
        costs: of steps.
        lengths: (prompt tokens, output tokens) of each request, in order; prompts share nothing.
        concurrency: clients, each with one request at a time.
        limits: of steps; the engine's defaults unless given.
    """
    limits = limits or SchedulerLimits()
    waiting = [_Request(prompt, output) for prompt, output in lengths if output > 0]
    running: list[_Request] = []
    seconds = 0.0
    while waiting or running:
        while waiting and len(running) < concurrency:
            running.append(waiting.pop(0))
            running[-1].submitted_at = seconds
        decoding = [one for one in running if one.num_emitted]
        room = limits.max_num_batched_tokens - len(decoding)
        if decoding and not _start_together(running, seconds, limits):
            room = min(room, limits.most_prompt_rows(len(decoding)))
        chunks: list[tuple[_Request, int]] = []
        for one in running:
            count = min(one.num_prompt - one.num_computed, limits.prefill_chunk, room)
            if not one.num_emitted and count > 0:
                chunks.append((one, count))
                room -= count
        context = float(sum(one.context for one in decoding) + sum(one.context for one, _ in chunks))
        rows = len(decoding) + sum(count for _, count in chunks)
        seconds += costs.step_s(rows, len(decoding) + len(chunks), context)
        for one in decoding:
            one.num_emitted += 1
        for one, count in chunks:
            one.num_computed += count
            if one.num_computed == one.num_prompt:
                one.num_emitted, one.first_token_at = 1, seconds
        running = [one for one in running if one.num_emitted < one.num_output]
    return seconds


def _start_together(running: Sequence[_Request], now: float, limits: SchedulerLimits) -> bool:
    """Whether prompts go first, as they came with the streams that have just begun."""
    first_token_at = min(one.first_token_at for one in running if one.num_emitted)
    prompts = [one.submitted_at for one in running if not one.num_emitted]
    return bool(prompts) and limits.start_together(prompts[0], first_token_at, now)
