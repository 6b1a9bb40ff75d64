"""Whose draft length is to be chosen, and what a sequence has where that is nobody's to do."""

from __future__ import annotations

from collections.abc import Callable

from paceline.config.drafter_names import models_of, together_first, with_mixed
from paceline.policy.interface import PLAIN, DraftChoice, SequenceView, StepView
from paceline.policy.routes import Speculation
from paceline.policy.rule import Member
from paceline.policy.step_planner import Wanted
from paceline.policy.tracks import RouteTrack


def models_in(view: StepView) -> list[str]:
    """Return the draft models that sequences of a step may ask."""
    drafters = dict.fromkeys(one.drafters for one in view.sequences)
    return models_of(name for each in drafters for name in each)


def by_who_chooses(
    view: StepView, track_of: Callable[[str | None], RouteTrack]
) -> tuple[dict[int, DraftChoice], dict[int, Wanted]]:
    """Return, by place, sequences with a fixed draft length and those that are to be chosen for.

    Args:
        view: the step.
        track_of: finds a route by the label that requests carry.
    """
    fixed: dict[int, DraftChoice] = {}
    wanted: dict[int, Wanted] = {}
    for place, one in enumerate(view.sequences):
        asked = one.speculation.enabled
        if asked is False or not one.drafters or one.most_drafts < 1:
            continue
        track = track_of(one.route)
        said = track.settings.speculation
        if said is Speculation.OFF:
            continue
        if asked is True or (asked == "route" and said is Speculation.ON):
            choice = fixed_choice(one, track)
            if choice.draft_length:
                fixed[place] = choice
        else:
            most = min(one.most_drafts, track.settings.most_drafts, one.speculation.max_draft_length or 64)
            wanted[place] = Wanted(one, track, most)
    return fixed, wanted


def fixed_member(length: int) -> Member:
    """Return what the rule knows of a sequence of which nothing is cut."""
    return Member(1.0, length, None, None, 0.0, is_fixed=True)


def fixed_choice(one: SequenceView, track: RouteTrack) -> DraftChoice:
    """Return the draft length and drafter that a request, or else its route, asks for."""
    asked, settings = one.speculation, track.settings
    length = asked.draft_length if asked.enabled is True else settings.fixed_length
    length = min(length, one.most_drafts, asked.max_draft_length or 64)
    # All drafters of the route together, if there is one that mixes them.
    names = (asked.drafter,) if asked.drafter else together_first(with_mixed(settings.drafters))
    name = next((name for name in names if name in one.drafters), None)
    return DraftChoice(length, name) if name is not None else PLAIN
