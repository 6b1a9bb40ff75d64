"""A simulated machine, and what simulations come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.policy.costs import CostCurve
from paceline.policy.simulation.traffic import SimulatedRoute, SimulatedSequence
from paceline.records import FinishReason, GenerationResult, SpeculationStats, Timing, Usage
from paceline.step_records import SequenceStep


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """What steps really cost, and how the clock shakes."""

    target: CostCurve
    draft: CostCurve
    overhead_s: float = 0.0
    """Of each step, whatever is in it."""
    lookup_s: float = 30e-6
    noise: float = 0.0
    """Standard deviation of the logarithm of each pass's time."""
    outliers: float = 0.0
    """Share of passes that take ten times as long."""
    max_num_seqs: int = 256
    num_blocks: int = 0
    """KV blocks for target and drafts; 0 is as many as it takes."""
    block_size: int = 16
    prefill_rows: int = 256
    """Most rows of a step that only prompts, or prompts first, take part in."""
    mixed_rows: int | None = None
    """Prompt rows of a step beside decoding sequences; None is the engine's own rule."""


@dataclass(slots=True)
class StepTrace:
    """What one simulated step did."""

    at: float
    num_decoding: int
    draft_lengths: dict[str, list[int]]
    """Verified drafts of each decoding sequence, by route."""
    asked: dict[str, int]
    """Sequences of each route that were to draft."""
    num_tokens: dict[str, int]
    seconds: float


@dataclass(slots=True)
class SimulationResult:
    """What came of it."""

    seconds: float
    num_tokens: dict[str, int]
    steps: list[StepTrace] = field(default_factory=list)
    num_finished: int = 0
    num_preemptions: int = 0

    @property
    def goodput(self) -> float:
        """Tokens per second of all routes."""
        return sum(self.num_tokens.values()) / self.seconds if self.seconds else 0.0

    def mean_draft_length(self, route: str, begin: int = 0, end: int | None = None) -> float:
        """Return the mean of verified drafts of a route's sequences over some steps."""
        lengths = [n for step in self.steps[begin:end] for n in step.draft_lengths.get(route, ())]
        return float(np.mean(lengths)) if lengths else 0.0

    def goodput_between(self, begin: int, end: int | None = None) -> float:
        """Return tokens per second over some steps."""
        steps = self.steps[begin:end]
        seconds = sum(step.seconds for step in steps)
        return sum(sum(step.num_tokens.values()) for step in steps) / seconds if seconds else 0.0


def drafters_of(route: SimulatedRoute) -> tuple[str, ...]:
    """Return the names of the drafters that a route's sequences have."""
    names = (*(("suffix",) if route.suffix is not None else ()), *(("model",) if route.has_model else ()))
    return (*names, "mixed") if len(names) == 2 else names


def trace_of(began: float, parts: Sequence[SequenceStep], seconds: float) -> StepTrace:
    """Return what a step did, from its parts."""
    lengths: dict[str, list[int]] = {}
    tokens: dict[str, int] = {}
    asked: dict[str, int] = {}
    for part in parts:
        name = part.route or ""
        tokens[name] = tokens.get(name, 0) + part.num_new_tokens
        if part.is_decoding:
            lengths.setdefault(name, []).append(part.num_drafted)
            asked[name] = asked.get(name, 0) + (part.draft_length > 0)
    return StepTrace(began, sum(part.is_decoding for part in parts), lengths, asked, tokens, seconds)


def answer_of(sequence: SimulatedSequence, now: float) -> GenerationResult:
    """Return the answer of a sequence that ended."""
    first = sequence.first_token_at or now
    return GenerationResult(
        id=f"r{sequence.number}", route=sequence.route.name, text="", token_ids=(),
        finish_reason=FinishReason.STOP, usage=Usage(sequence.route.prompt_tokens, sequence.num_output),
        speculation=SpeculationStats(
            None, num_drafted=sequence.num_drafted, num_accepted=sequence.num_accepted
        ),
        timing=Timing(first - sequence.submitted_at, now - first, 0.0, 0.0, sequence.num_output - 1), seed=0,
    )  # fmt: skip
