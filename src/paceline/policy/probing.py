"""Looking, now and then, whether a paused route's drafts would be accepted again.

One sequence of a route that was paused for its acceptance, or before that was known, keeps watch. Where the
draft model can score text, it reads every so often the tokens that were decoded meanwhile, in one pass, and
says at each of them whether it would have drafted it: many observations for little more than one draft.
Elsewhere the watcher drafts one token now and then, less and less often while nothing changes, and more often
when something seems to. If no sequence is at hand, the next request that starts becomes the watcher. What
probes lose is charged to the route's ledger, which allows only so much."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from paceline.config.drafter_names import SUFFIX, model_of, models_of, with_mixed
from paceline.policy.acceptance import LEAST_OWN, Acceptance
from paceline.policy.interface import DraftChoice, StepView
from paceline.policy.states import PauseReason
from paceline.policy.step_costs import StepCosts
from paceline.policy.step_planner import CATCH_UP_FREE, Wanted
from paceline.policy.tracks import RouteTrack

SCORE_TOKENS = 24
"""Tokens that a watcher lets gather before it scores them."""
LEAST_EVERY, MOST_EVERY = 4, 24
"""Steps from one draft to the next, for a watcher that cannot score."""
PROBE_LENGTH = 1
WATCHING = DraftChoice(keeps_drafts=True)
LEAST_REMAINING = 12
NEWLY_STARTED = 4
"""Tokens of an answer up to which its request counts as newly started."""


@functools.lru_cache(1024)
def _who_is_there(
    allowed: tuple[str, ...], asked: str | None, here: tuple[str, ...]
) -> tuple[tuple[str, ...], bool]:
    """Return what a sequence could ask that runs a draft model, and whether it could look up."""
    names = with_mixed(allowed) if asked is None else (asked,)
    found = [name for name in names if name in here]
    return tuple(name for name in found if name != SUFFIX), SUFFIX in found


class Prober:
    """Picks who watches and when to look."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance) -> None:
        self._costs = costs
        self._acceptance = acceptance
        self.probed: dict[int, RouteTrack] = {}
        """Sequences that draft for a probe in this step."""
        self._questions: dict[str, bool] = {}
        self._first_models: dict[str, str | None] = {}
        """The first draft model that a route may ask, none if it only looks up."""

    def begin(self, view: StepView, tracks: Iterable[RouteTrack]) -> None:
        """Forget the last step's probes, and watchers that are gone, however they went."""
        self.probed.clear()
        for track in tracks:
            if track.watcher is not None and all(one.number != track.watcher for one in view.sequences):
                track.watcher = None
        self._questions.clear()
        self._first_models.clear()

    def choice(self, one: Wanted, step: int) -> DraftChoice | None:
        """Return what a sequence of a paused route does in this step; none if it has nothing to do with
        probes."""
        track, view = one.track, one.view
        if track.watcher not in (None, view.number):
            return None
        is_in_question = self._questions.get(track.name)
        if is_in_question is None:
            is_in_question = self._questions[track.name] = self._is_in_question(track)
        if not is_in_question:
            return None
        if track.watcher is None and not self._is_too_old(one) and self._can_watch(one):
            track.watcher = view.number
        if track.watcher != view.number:
            return None
        drafter = self._drafter(one, track.num_probes)
        if drafter is None:
            return WATCHING
        is_scoring = drafter != SUFFIX and view.can_score
        if is_scoring:
            is_due = self._num_missing(one, drafter) > SCORE_TOKENS
        else:
            is_due = step - track.probed_at_step >= track.probe_every
        if not is_due or not track.ledger.can_spend(self.cost_s(drafter, self._num_missing(one, drafter))):
            # A suffix match may be due while the draft model waits.
            track.num_probes += is_scoring and not is_due
            return WATCHING
        track.probed_at_step = step
        track.num_probes += 1
        self.probed[view.number] = track
        return DraftChoice(0, drafter, scores=True) if is_scoring else DraftChoice(PROBE_LENGTH, drafter)

    def may_ask(self, one: Wanted) -> bool:
        """Whether a sequence of a paused route may have to do with probes, now or as long as nothing but its
        length changes."""
        return one.track.watcher == one.view.number or not self._is_too_old(one)

    def adapt(self, track: RouteTrack, *, is_promising: bool) -> None:
        """Probe a route more often when things seem to get better, and less often while they do not."""
        track.probe_every = LEAST_EVERY if is_promising else min(MOST_EVERY, track.probe_every * 5 // 4 + 1)

    def _is_in_question(self, track: RouteTrack) -> bool:
        """Whether the route's acceptance is what keeps it paused, or may be, as long as it was hardly
        measured."""
        if track.reason is PauseReason.LOAD:
            known = (found.calibration.counts.total for found in self._acceptance.known(track.name))
            return max(known, default=0.0) < LEAST_OWN
        return track.reason is PauseReason.ACCEPTANCE

    def cost_s(self, drafter: str, num_missing: int) -> float:
        """Return the seconds of one probe that finds nothing."""
        name = model_of(drafter)
        if name is None:
            return self._costs.lookup_s
        return self._costs.draft(name).seconds(1) + self._costs.catch_up_s(name, max(0, num_missing - 1))

    def _is_too_old(self, one: Wanted) -> bool:
        """Whether it is plain at a glance that a draft model would have to read too much of a sequence.

        So it is of nearly all, in every step in which nobody watches."""
        view, track = one.view, one.track
        if (
            view.num_output_tokens <= NEWLY_STARTED
            or view.holds_drafts
            or view.num_draft_missing <= CATCH_UP_FREE
        ):
            return False
        if track.name not in self._first_models:
            self._first_models[track.name] = next(iter(models_of(track.settings.drafters)), None)
        return view.speculation.drafter is None and self._first_models[track.name] in view.drafters

    def _can_watch(self, one: Wanted) -> bool:
        view, track = one.view, one.track
        drafter = self._drafter(one, 0)
        if drafter is None:
            return False
        num_missing = self._num_missing(one, drafter)
        if not (drafter == SUFFIX or num_missing <= CATCH_UP_FREE or view.holds_drafts):
            is_new = view.num_output_tokens <= NEWLY_STARTED
            if not (is_new and track.ledger.can_spend(self.cost_s(drafter, num_missing))):
                return False
        remaining = min(track.lengths.remaining(view.num_output_tokens), float(view.most_drafts))
        return remaining >= LEAST_REMAINING

    @staticmethod
    def _num_missing(one: Wanted, drafter: str) -> int:
        return one.view.num_missing_of(model_of(drafter) or drafter)

    def _drafter(self, one: Wanted, turn: int) -> str | None:
        """Return who is asked: the draft model that holds the sequence, or else the one that is known
        least."""
        view, track = one.view, one.track
        models, has_suffix = _who_is_there(track.settings.drafters, view.speculation.drafter, view.drafters)
        if not models or (has_suffix and turn % 2):
            return SUFFIX if has_suffix else None
        if len(models) == 1:
            return models[0]
        return min(models, key=lambda name: (model_of(name) != view.held_by, self._num_known(track, name)))

    def _num_known(self, track: RouteTrack, drafter: str) -> float:
        return self._acceptance.of(track.name, model_of(drafter) or drafter).calibration.counts.total
