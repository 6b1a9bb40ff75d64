"""Keeps the routes' states: applies the rules of `transitions`, and records each change with its numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from paceline.config.drafter_names import SUFFIX
from paceline.policy import sentences
from paceline.policy.acceptance import Acceptance
from paceline.policy.chooser import SHADOW_STEPS, Outcome
from paceline.policy.decision_log import DecisionLog
from paceline.policy.held_plan import HELD_STEPS
from paceline.policy.interface import StepView
from paceline.policy.routes import RouteSettings, Speculation
from paceline.policy.situation import describe, pays_alone
from paceline.policy.states import Decision, EventKind, PauseReason, RouteState, Situation, state_word
from paceline.policy.step_costs import StepCosts
from paceline.policy.tracks import RouteTrack
from paceline.policy.transitions import MemoryWatch, note_wish, wants_pause, wants_resume

RESTORED = "as before the restart: "


class StateKeeper:
    """The only one who changes a route's state."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance, log: DecisionLog) -> None:
        self._costs = costs
        self._acceptance = acceptance
        self._log = log
        self._memory = MemoryWatch()
        self._rows = self._price = 0.0
        self.version = 0
        """Grows whenever a route's state changes."""

    def new_track(self, name: str, settings: RouteSettings) -> RouteTrack:
        """Return the track of a route that is met for the first time."""
        track = RouteTrack(name, settings)
        track.ledger.share = settings.probe_budget
        self._follow(track)
        return track

    def restore(self, track: RouteTrack, reason: PauseReason, sentence: str) -> None:
        """Begin with a route paused, as an earlier process left it, if its owner leaves it to the policy."""
        if track.settings.speculation is not Speculation.AUTO:
            return
        track.state, track.reason, track.wish = RouteState.PAUSED, reason, 0.0
        before = sentence.removeprefix(RESTORED)
        track.sentence = RESTORED + (before or state_word(track.state, reason))
        self.version += 1

    def look_at_memory(self, view: StepView, tracks: Collection[RouteTrack], step: int) -> None:
        """Pause or resume a route for the sake of KV memory."""
        memory = self._memory
        memory.look(view)
        if not (memory.may_pause(step) or (memory.may_resume(step) and any(map(_lacks_memory, tracks)))):
            return
        auto = [track for track in tracks if track.settings.speculation is Speculation.AUTO]
        if (track := self._memory.to_pause(auto, step)) is not None:
            self._pause(track, view, step, PauseReason.MEMORY)
        elif (track := self._memory.to_resume(auto, step)) is not None:
            self._resume(track, view, step)

    def update(self, outcome: Outcome, tracks: Mapping[str, RouteTrack], view: StepView, step: int) -> None:
        """Let each route's state follow what it wished for, slowly."""
        self._rows, self._price = outcome.choice.rows, outcome.choice.price
        for name, wish in outcome.wishes.items():
            track = tracks[name]
            if track.settings.speculation is not Speculation.AUTO:
                continue
            track.speedup = wish.speedup
            if wish.arm is not None:
                track.source = wish.arm.model or SUFFIX
            # What was wished last stands for the steps until now, in which nobody asked.
            num_steps = step - track.asked_at_step
            for _ in range(num_steps - 1 if num_steps < SHADOW_STEPS + HELD_STEPS[-1] else 0):
                note_wish(track, track.would_draft, is_short=track.is_short)
            track.would_draft, track.is_short, track.asked_at_step = wish.would_draft, wish.is_short, step
            note_wish(track, wish.would_draft, is_short=wish.is_short)
            if wants_pause(track, step):
                self._pause(track, view, step, self._why(track, view))
            elif wants_resume(track, step):
                self._resume(track, view, step)

    def follow_settings(self, track: RouteTrack) -> None:
        """Let a route's state follow settings that were replaced."""
        track.ledger.share = track.settings.probe_budget
        self._follow(track)

    def note_setting(
        self, track: RouteTrack, before: str, settings: RouteSettings, *, by: str, now: float, step: int
    ) -> None:
        """Record that a person changed a route."""
        self.follow_settings(track)
        changed = settings.model_dump(mode="json", exclude_unset=True)
        words = ", ".join(f"{key}: {value}" for key, value in changed.items()) or "all defaults"
        self._log.add(
            Decision(
                at=now, step=step, route=track.name, kind=EventKind.SETTING, before=before,
                after=state_word(track.state, track.reason), sentence=f"set by {by}: {words}", by=by,
            )
        )  # fmt: skip

    def note_drift(self, track: RouteTrack, slow: float, fast: float, now: float, step: int) -> None:
        """Record that acceptance left its band."""
        word = state_word(track.state, track.reason)
        sentence = sentences.drifted(slow, fast, 64)
        self._log.add(
            Decision(now, step, track.name, EventKind.DRIFT, word, word, sentence,
                     numbers_before={"acceptance": slow}, numbers_after={"acceptance": fast})
        )  # fmt: skip

    def _follow(self, track: RouteTrack) -> None:
        said = track.settings.speculation
        if said is Speculation.OFF:
            track.state, track.reason = RouteState.OFF, None
            track.sentence = "off: a person wants it so"
        elif said is Speculation.ON:
            track.state, track.reason = RouteState.SPECULATING, None
            track.sentence = f"speculating: a person wants {track.settings.fixed_length} drafts in every step"
        elif track.state is RouteState.OFF or not track.is_paused:
            track.state, track.reason, track.wish = RouteState.SPECULATING, None, 1.0
            track.sentence = "speculating: nothing speaks against it yet"

    def _why(self, track: RouteTrack, view: StepView) -> PauseReason:
        if track.shortness > 0.5:
            return PauseReason.SHORT_OUTPUTS
        pays = pays_alone(track, view, self._costs, self._acceptance)
        return PauseReason.LOAD if pays else PauseReason.ACCEPTANCE

    def _pause(self, track: RouteTrack, view: StepView, step: int, reason: PauseReason) -> None:
        now = self._situation(track, view)
        self._change(track, view, step, RouteState.PAUSED, reason, sentences.paused(reason, now), now)
        track.wish = 0.0
        track.watcher = None

    def _resume(self, track: RouteTrack, view: StepView, step: int) -> None:
        now = self._situation(track, view)
        self._change(
            track, view, step, RouteState.SPECULATING, None, sentences.resumed(track.reason, now), now
        )
        track.wish = 1.0
        track.watcher = None

    def _situation(self, track: RouteTrack, view: StepView) -> Situation:
        return describe(track, view, self._costs, self._acceptance, self._rows, self._price)

    def _change(
        self,
        track: RouteTrack,
        view: StepView,
        step: int,
        state: RouteState,
        reason: PauseReason | None,
        sentence: str,
        now: Situation,
    ) -> None:
        before = state_word(track.state, track.reason)
        numbers_before = {} if track.situation is None else asdict(track.situation)
        track.state, track.reason, track.sentence = state, reason, sentence
        track.situation, track.changed_at_step = now, step
        self.version += 1
        self._log.add(
            Decision(
                at=view.now, step=step, route=track.name, kind=EventKind.STATE, before=before,
                after=state_word(state, reason), sentence=sentence, numbers_before=numbers_before,
                numbers_after=asdict(now),
            )
        )  # fmt: skip


def _lacks_memory(track: RouteTrack) -> bool:
    return track.reason is PauseReason.MEMORY
