"""A plan that is still good for the next step.

Between two tokens hardly anything changes of what draft lengths depend on: the same sequences go on, a few
positions longer. So a plan serves for a few steps, as long as nothing has happened that could change it, and
the search, which costs more than all the rest, is made anew only then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.policy.draft_lengths import Choice
from paceline.policy.interface import DraftChoice, SequenceView, StepView
from paceline.policy.rule import Member
from paceline.policy.step_planner import Wanted

HELD_STEPS = (1, 4, 8, 16)
"""Steps for which a plan serves: a single one as long as plans still change from step to step, and more the
oftener it was found anew."""
LEAST_LONG = 4
"""Steps for which a plan may serve however few sequences there are; with more, as many as there are."""
CHANGE = 0.25
"""Part of a draft length, if more than one draft, by which another is one."""


@dataclass(frozen=True, slots=True)
class HeldPlan:
    """Answers of one step, with what they depend on."""

    step: int
    """In which it was made."""
    versions: tuple[int, ...]
    """Of settings, states and sudden changes of acceptance, then."""
    num_prompt_rows: int
    sequences: tuple[SequenceView, ...]
    choices: tuple[DraftChoice, ...]
    """Probes left out."""
    members: dict[int, Member]
    """What the rule knows of those that draft; probes left out."""
    asking: tuple[tuple[int, Wanted], ...]
    """Places of sequences that may probe, for a paused route or among several draft models: these are asked
    in every step."""
    choice: Choice | None
    """What the search found; none if nobody was chosen for."""
    wishing: frozenset[str] = frozenset()
    """Routes that would draft, those that are paused included."""
    num_alike: int = 0
    """Plans before it, one after the other, that gave the same sequences about the same lengths."""

    def after(self, other: HeldPlan | None) -> HeldPlan:
        """Return this plan as the one that follows another."""
        if other is None or not self._is_like(other):
            return self
        return replace(self, num_alike=min(other.num_alike + 1, len(HELD_STEPS) - 1))

    def _is_like(self, other: HeldPlan) -> bool:
        """Whether another plan has the same drafters and about the same lengths for the same sequences.

        About, since the rule of each step ends drafts by their tokens, whatever length they may have."""
        return (
            self.wishing == other.wishing
            and [one.number for one in self.sequences] == [one.number for one in other.sequences]
            and all(
                now.drafter == then.drafter and _is_near(now.draft_length, then.draft_length)
                for now, then in zip(self.choices, other.choices, strict=True)
            )
        )

    @property
    def _num_steps(self) -> int:
        """Steps that it serves for. With few sequences a search takes no time worth saving, and a single
        stream would lose a per cent or two by what its plan does not know yet."""
        return min(HELD_STEPS[self.num_alike], max(LEAST_LONG, len(self.sequences)))

    def serves(self, view: StepView, step: int, versions: tuple[int, ...]) -> bool:
        """Whether nothing that counts is different in this step."""
        if (
            step - self.step >= self._num_steps
            or versions != self.versions
            or view.num_prompt_rows != self.num_prompt_rows
            or len(view.sequences) != len(self.sequences)
        ):
            return False
        for now, then, choice in zip(view.sequences, self.sequences, self.choices, strict=True):
            if (
                now.number != then.number
                or now.most_drafts < choice.draft_length
                or now.drafters != then.drafters
                or (now.most_drafts < 1) != (then.most_drafts < 1)
            ):
                return False
        return True


def _is_near(length: int, other: int) -> bool:
    most = max(length, other)
    return (length == 0) == (other == 0) and abs(length - other) <= max(1.0, CHANGE * most)
