"""Drafting on a simulated machine: look-ups, passes of the draft model, and its catching up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.clock import Clock
from paceline.policy.interface import DraftChoice, DraftPlan
from paceline.policy.simulation.memory import SimulatedMemory
from paceline.policy.simulation.result import SimulatedMachine
from paceline.policy.simulation.traffic import SimulatedSequence

DRAFT_CHUNK = 128
CATCH_UP = 8

Drafts = dict[int, tuple[str, list[float], list[bool]]]
"""Source, confidences and rightness, by sequence number."""
Scores = tuple[tuple[float, bool], ...]


class SimulatedDrafting:
    """The draft model and the look-ups of one machine.

    Args:
        machine: what they cost.
        memory: where draft KV is held.
        clock: of the simulation.
        shake: noise of each time that is measured, as a factor.
    """

    def __init__(
        self,
        machine: SimulatedMachine,
        memory: SimulatedMemory,
        clock: Clock,
        shake: Callable[[], float],
    ) -> None:
        self.machine = machine
        self.clock = clock
        self._memory = memory
        self._shake = shake
        self._running: Sequence[SimulatedSequence] = ()
        self._num_steps = 0
        self._scored: dict[int, Scores] = {}

    def take_scores(self, number: int) -> Scores:
        """Return what the draft model said of a sequence's text in this step."""
        return self._scored.pop(number, ())

    def draft(
        self,
        decoding: Sequence[SimulatedSequence],
        plan: DraftPlan,
        running: Sequence[SimulatedSequence],
        num_steps: int,
    ) -> tuple[Drafts, float, list[int]]:
        """Return the drafts, seconds, and rows of each draft pass.

        Args:
            decoding: sequences, in the plan's order.
            plan: who drafts how much.
            running: all that hold memory.
            num_steps: steps before this one.
        """
        self._running, self._num_steps = running, num_steps
        seconds = 0.0
        found: Drafts = {}
        asking: list[tuple[SimulatedSequence, DraftChoice]] = []
        for sequence, choice in zip(decoding, plan.choices, strict=True):
            if choice.scores:
                seconds += self._score(sequence)
            if not choice.draft_length:
                continue
            if choice.drafter in ("suffix", "mixed"):
                seconds += self.machine.lookup_s
                assert sequence.route.suffix is not None
                said, right = sequence.drafts("suffix", sequence.route.suffix, choice.draft_length)
                is_taken = choice.drafter == "suffix" or (
                    plan.rule is not None and plan.rule.prefers_match(sequence.number, said)
                )
                if is_taken:
                    found[sequence.number] = ("suffix", said, right)
                    continue
            asking.append((sequence, choice))
        passes, rows = self._model_passes(asking, plan, found)
        return found, seconds + passes * self._shake(), rows

    def _score(self, sequence: SimulatedSequence) -> float:
        """Let the draft model read what it lacks, a chunk at most; return the seconds."""
        missing = sequence.num_context - sequence.num_draft_computed
        if not self._memory.has_room_for_drafts(sequence, self._running):
            return 0.0
        count = min(missing, DRAFT_CHUNK)
        begin = sequence.num_draft_computed
        sequence.num_draft_computed += count
        process = sequence.route.acceptance_at(self.clock(), self._num_steps)
        first = max(0, begin - sequence.route.prompt_tokens)
        last = max(0, sequence.num_draft_computed - sequence.route.prompt_tokens)
        self._scored[sequence.number] = sequence.outcomes("model", process, first, last)
        return self.machine.draft.seconds_of(count)

    def _model_passes(
        self,
        asking: Sequence[tuple[SimulatedSequence, DraftChoice]],
        plan: DraftPlan,
        found: Drafts,
    ) -> tuple[float, list[int]]:
        left, ready, extra = DRAFT_CHUNK, [], 0
        for sequence, choice in sorted(
            asking, key=lambda one: one[0].num_context - one[0].num_draft_computed
        ):
            missing = sequence.num_context - sequence.num_draft_computed
            if not self._memory.has_room_for_drafts(sequence, self._running):
                sequence.num_draft_computed = 0
                continue
            if missing <= max(left, CATCH_UP):
                ready.append((sequence, choice))
                extra += missing - 1
                sequence.num_draft_computed = sequence.num_context
            elif left > 0:
                extra += left
                sequence.num_draft_computed += left
            left -= missing
        rows: list[int] = []
        drawn: dict[int, tuple[list[float], list[bool]]] = {}
        active = ready
        for depth in range(64):
            if not active and not (extra and not rows):
                break
            rows.append(len(active) + (extra if depth == 0 else 0))
            asked = []
            for sequence, choice in active:
                process = sequence.route.acceptance_at(self.clock(), self._num_steps)
                if sequence.number not in drawn:
                    drawn[sequence.number] = sequence.drafts("model", process, choice.draft_length)
                asked.append((sequence.number, drawn[sequence.number][0][depth]))
            going = plan.rule.going_on(asked) if plan.rule is not None and asked else [True] * len(asked)
            for (sequence, _), goes_on in zip(active, going, strict=True):
                said, right = drawn[sequence.number]
                if not goes_on or len(said) == depth + 1:
                    found[sequence.number] = ("model", said[: depth + 1], right[: depth + 1])
            active = [
                (s, c) for (s, c), goes_on in zip(active, going, strict=True)
                if goes_on and len(drawn[s.number][0]) > depth + 1
            ]  # fmt: skip
        return sum(self.machine.draft.seconds_of(count) for count in rows), rows


def cut(decoding: Sequence[SimulatedSequence], drafts: Drafts, plan: DraftPlan) -> dict[int, int]:
    """Return how many drafts of each sequence get a row."""
    asked = [(s.number, *drafts[s.number][:2], True) for s in decoding if s.number in drafts]
    if plan.rule is None:
        return {number: len(said) for number, _, said, _ in asked}
    lengths = plan.rule.lengths(asked)
    return {number: length for (number, *_), length in zip(asked, lengths, strict=True)}
