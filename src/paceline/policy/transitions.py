"""When a route pauses and when it goes on: slow, smoothed, and never twice within a few steps.

Draft lengths follow the moment, step by step. States follow the wish to draft over many steps, with a wide
band between leaving and returning and a least time in each, so that near break-even, or with a noisy clock,
nothing flips."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.policy.interface import StepView
from paceline.policy.states import PauseReason, RouteState
from paceline.policy.tracks import RouteTrack

DWELL_STEPS = 20
"""Least steps in a state."""
WISH_RATE = 0.15
PAUSE_BELOW = 0.25
RESUME_ABOVE = 0.75
PRESSURE_RATE = 0.25
CALM_STEPS = 20
HELD_STEPS = 40
"""Steps for which drafts count as holders after they held blocks last: they are had back before anyone
waits."""
CALM_SHARE = 0.75
"""Below this a route may have its draft KV back."""


def note_wish(track: RouteTrack, wish: bool, *, is_short: bool) -> None:
    """Take note of whether drafting was worth it for a route in a step, and if not, whether for its
    length."""
    track.wish += WISH_RATE * (wish - track.wish)
    track.shortness += WISH_RATE * (is_short - track.shortness)


def wants_pause(track: RouteTrack, step: int) -> bool:
    """Whether a speculating route should stop."""
    has_dwelt = step - track.changed_at_step >= DWELL_STEPS
    return track.state is RouteState.SPECULATING and has_dwelt and track.wish < PAUSE_BELOW


def wants_resume(track: RouteTrack, step: int) -> bool:
    """Whether a paused route should go on; memory has its own rule."""
    has_dwelt = step - track.changed_at_step >= DWELL_STEPS
    is_by_wish = track.reason is not PauseReason.MEMORY
    return track.is_paused and is_by_wish and has_dwelt and track.wish > RESUME_ABOVE


class MemoryWatch:
    """Sees whether requests wait for blocks that drafts hold, and who should give way."""

    def __init__(self) -> None:
        self._pressure = 0.0
        self._num_calm = 0
        self._since_held = HELD_STEPS
        self._num_preemptions = 0
        self._acted_at_step = -10_000

    def look(self, view: StepView) -> None:
        """Take note of a step's memory."""
        was_preempted = view.num_preemptions > self._num_preemptions
        self._num_preemptions = view.num_preemptions
        share = view.num_blocks_used / view.num_blocks if view.num_blocks else 0.0
        is_short = was_preempted or view.is_short_of_blocks
        self._since_held = 0 if view.num_blocks_of_drafts else self._since_held + 1
        self._pressure += PRESSURE_RATE * (is_short - self._pressure)
        self._num_calm = self._num_calm + 1 if not is_short and share <= CALM_SHARE else 0

    def may_pause(self, step: int) -> bool:
        """Whether some route should give its draft KV back now."""
        drafts_hold = self._since_held < HELD_STEPS
        return self._pressure >= 0.5 and drafts_hold and step - self._acted_at_step >= DWELL_STEPS

    def may_resume(self, step: int) -> bool:
        """Whether some route may have draft KV again."""
        return self._num_calm >= CALM_STEPS and step - self._acted_at_step >= DWELL_STEPS

    def to_pause(self, tracks: Iterable[RouteTrack], step: int) -> RouteTrack | None:
        """Return the route of least weight that should give its draft KV back now; none if none should."""
        if not self.may_pause(step):
            return None
        able = [
            track
            for track in tracks
            if track.state is RouteState.SPECULATING
            and step - track.changed_at_step >= DWELL_STEPS
            and set(track.settings.drafters) != {"suffix"}
        ]
        found = min(able, key=lambda track: (track.settings.weight, track.name), default=None)
        if found is not None:
            self._acted_at_step = step
        return found

    def to_resume(self, tracks: Iterable[RouteTrack], step: int) -> RouteTrack | None:
        """Return the route of most weight that may have draft KV again; none if none may."""
        if not self.may_resume(step):
            return None
        able = [
            track
            for track in tracks
            if track.reason is PauseReason.MEMORY and step - track.changed_at_step >= DWELL_STEPS
        ]
        found = max(able, key=lambda track: (track.settings.weight, track.name), default=None)
        if found is not None:
            self._acted_at_step = step
        return found
