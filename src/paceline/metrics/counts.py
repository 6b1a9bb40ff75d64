"""Counts of steps and answers by route and drafter: an observer of the engine.

It runs on the engine's thread, once a step, so it adds up plain numbers and nothing else. Routes are those of
the configuration and drafters those that are loaded, so that the number of series is bounded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from paceline.metrics.histogram import Histogram
from paceline.policy.states import Decision
from paceline.records import GenerationResult
from paceline.step_records import SequenceStep, Stall, StepRecord

TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
DURATION_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DRAFT_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16)
MAX_POSITIONS = 16
"""Draft positions that are told apart; those beyond count with the last."""
NO_ROUTE = "none"
RECENT = 0.99
"""What a step leaves of the weight of those before it, where something is said of the latest steps."""


@dataclass(slots=True)
class DraftCounts:
    """Drafts of one drafter on one route."""

    num_drafted: int = 0
    num_accepted: int = 0
    drafted_at: list[int] = field(default_factory=lambda: [0] * MAX_POSITIONS)
    accepted_at: list[int] = field(default_factory=lambda: [0] * MAX_POSITIONS)

    def add(self, num_drafted: int, num_accepted: int) -> None:
        """Count the drafts that one sequence had verified in a step."""
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        for position in range(num_drafted):
            place = min(position, MAX_POSITIONS - 1)
            self.drafted_at[place] += 1
            self.accepted_at[place] += position < num_accepted


@dataclass(slots=True)
class RouteCounts:
    """Everything of one route."""

    num_answers: Counter[str] = field(default_factory=Counter)
    """By finish reason."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_verify_steps: int = 0
    """Sequences' steps in which they decoded."""
    drafts: dict[str, DraftCounts] = field(default_factory=dict)
    draft_lengths: Histogram = field(default_factory=lambda: Histogram(DRAFT_LENGTHS))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_S))
    itl: Histogram = field(default_factory=lambda: Histogram(ITL_S))
    duration: Histogram = field(default_factory=lambda: Histogram(DURATION_S))
    num_fallbacks: int = 0
    """Answers that went without drafts, for a while or to the end, though their requests asked for them."""
    recent_steps: float = 0.0
    recent_tokens: float = 0.0

    @property
    def acceptance_length(self) -> float | None:
        """Tokens for each verify step, over the latest steps; none before the first."""
        return self.recent_tokens / self.recent_steps if self.recent_steps else None


@dataclass(slots=True)
class _Running:
    """What is kept of a sequence until it ends."""

    sent_at: float
    num_sent: int = 0


class Counts:
    """An observer that counts.

    Args:
        routes: those that are there from the beginning, so that their series begin at 0.
    """

    def __init__(self, routes: tuple[str, ...] = ()) -> None:
        self.routes: dict[str, RouteCounts] = {name: RouteCounts() for name in routes}
        self.num_steps = 0
        self.step_s = 0.0
        self.draft_s = 0.0
        self.verify_s = 0.0
        self.num_stalls = 0
        self.decisions: Counter[tuple[str, str, str]] = Counter()
        """By route, kind and what came of it."""
        self._running: dict[tuple[str, int], _Running] = {}

    def on_step(self, record: StepRecord) -> None:
        """Count a step."""
        self.num_steps += 1
        self.step_s += record.duration_s
        self.draft_s += record.draft_s
        self.verify_s += record.verify_s
        now = record.began_at + record.duration_s
        for part in record.sequences:
            counts = self._of(part.route)
            if part.is_decoding:
                self._count_drafts(counts, part)
            if part.num_sent_tokens:
                self._count_sent(counts, part, now)

    def on_finish(self, result: GenerationResult) -> None:
        """Count an answer, however it ended."""
        counts = self._of(result.route)
        counts.num_answers[result.finish_reason.value] += 1
        if result.index == 0:
            counts.num_prompt_tokens += result.usage.prompt_tokens
            counts.num_cached_tokens += result.num_cached_tokens
        running = self._running.pop((result.id, result.index), None)
        counts.num_output_tokens += result.usage.completion_tokens - (running.num_sent if running else 0)
        counts.num_fallbacks += result.speculation.fallback is not None
        if result.timing.ttft_s is not None:
            counts.ttft.add(result.timing.ttft_s)
            counts.duration.add(result.timing.ttft_s + result.timing.decode_s)

    def on_decision(self, decision: Decision) -> None:
        """Count a decision of the policy, or of a person."""
        self.decisions[decision.route, decision.kind.value, decision.after] += 1

    def on_stall(self, stall: Stall) -> None:
        """Count a sequence that was not served, or a step that did not end."""
        self.num_stalls += 1

    def _of(self, route: str | None) -> RouteCounts:
        name = route or NO_ROUTE
        found = self.routes.get(name)
        if found is None:
            found = self.routes[name] = RouteCounts()
        return found

    def _count_drafts(self, counts: RouteCounts, part: SequenceStep) -> None:
        counts.num_verify_steps += 1
        counts.recent_steps = counts.recent_steps * RECENT + 1
        counts.recent_tokens = counts.recent_tokens * RECENT + part.num_new_tokens
        counts.draft_lengths.add(part.num_drafted)
        if part.num_drafted:
            drafter = part.source or part.drafter or "unknown"
            drafts = counts.drafts.get(drafter)
            if drafts is None:
                drafts = counts.drafts[drafter] = DraftCounts()
            drafts.add(part.num_drafted, part.num_accepted)

    def _count_sent(self, counts: RouteCounts, part: SequenceStep, now: float) -> None:
        counts.num_output_tokens += part.num_sent_tokens
        key = (part.request_id, part.index)
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Running(now)
        else:
            counts.itl.add((now - running.sent_at) / part.num_sent_tokens, part.num_sent_tokens)
            running.sent_at = now
        running.num_sent += part.num_sent_tokens
