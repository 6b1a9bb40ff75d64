"""What a sequence has whose draft length is nobody's to choose."""

from __future__ import annotations

from paceline.config.drafter_names import together_first, with_mixed
from paceline.policy.interface import PLAIN, DraftChoice, SequenceView
from paceline.policy.rule import Member
from paceline.policy.tracks import RouteTrack


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
