"""A plan that is still good for the next step.

Between two tokens hardly anything changes of what draft lengths depend on: the same sequences go on, a few
positions longer. So a plan serves for a few steps, as long as nothing has happened that could change it, and
the search, which costs more than all the rest, is made anew only then."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.policy.draft_lengths import Choice
from paceline.policy.interface import DraftChoice, SequenceView, StepView
from paceline.policy.rule import Member
from paceline.policy.step_planner import Wanted

HELD_STEPS = 4
"""Steps for which a plan serves at most; for a single one as long as plans still change from step to step."""


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
    is_settled: bool = False
    """Whether the plan before it gave the same sequences the same lengths."""

    def is_like(self, other: HeldPlan | None) -> bool:
        """Whether another plan has the same lengths and drafters for the same sequences."""
        return (
            other is not None
            and [one[:2] for one in self.choices] == [one[:2] for one in other.choices]
            and [one.number for one in self.sequences] == [one.number for one in other.sequences]
        )

    def serves(self, view: StepView, step: int, versions: tuple[int, ...]) -> bool:
        """Whether nothing that counts is different in this step."""
        if (
            step - self.step >= (HELD_STEPS if self.is_settled else 1)
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
