"""Finding out what a draft model is worth to a route that may choose among several.

One that the route hardly knows, or did not look at for long, is tried on one sequence: a new one, since
another draft model's text would have to be read anew. It drafts a few tokens in each step until enough are
judged. What that loses is charged to the route's ledger, as with any other probe, and waits where that allows
no more."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config.drafter_names import models_of
from paceline.policy.acceptance import LEAST_OWN, Acceptance
from paceline.policy.interface import DraftChoice
from paceline.policy.probing import LEAST_REMAINING, Prober
from paceline.policy.step_planner import Wanted
from paceline.policy.tracks import RouteTrack

TRIAL_LENGTH = 3
LEAST_JUDGED = 16.0
"""Drafts that a trial has judged at its end, beyond those that were known."""
RETRY_STEPS = 4000
"""Steps after which a model that is not used is looked at again."""
GONE_STEPS = 16
"""Steps without its sequence after which a trial is over."""


@dataclass(slots=True)
class _Trial:
    number: int
    """Of the sequence."""
    model: str
    ends_at: float
    """Drafts that are judged by then."""
    seen_at_step: int


class ModelTrials:
    """At most one trial for each route at a time.

    Args:
        prober: knows what drafts cost, and is told of sequences that draft to find out.
        acceptance: what is known.
    """

    def __init__(self, prober: Prober, acceptance: Acceptance) -> None:
        self._prober = prober
        self._acceptance = acceptance
        self._trials: dict[str, _Trial] = {}
        self._looked_at: dict[tuple[str, str], int] = {}

    def choice(self, one: Wanted, step: int) -> DraftChoice | None:
        """Return what a sequence does for a trial in this step; none if it has no part in one."""
        track, view = one.track, one.view
        trial = self._trials.get(track.name)
        if trial is not None and step - trial.seen_at_step > GONE_STEPS:
            self._end(track, step)
            trial = None
        if trial is None:
            trial = self._begin(one, step)
        if trial is None or trial.number != view.number:
            return None
        trial.seen_at_step = step
        if self._known(track, trial.model) >= trial.ends_at or trial.model not in view.drafters:
            self._end(track, step)
            return None
        if not track.ledger.can_spend(self._prober.cost_s(trial.model, view.num_missing_of(trial.model))):
            return None
        self._prober.probed[view.number] = track
        return DraftChoice(min(TRIAL_LENGTH, one.most), trial.model)

    def _begin(self, one: Wanted, step: int) -> _Trial | None:
        track, view = one.track, one.view
        if view.holds_drafts or view.speculation.drafter is not None:
            return None
        models = [model for model in models_of(track.settings.drafters) if model in view.drafters]
        remaining = min(track.lengths.remaining(view.num_output_tokens), float(view.most_drafts))
        if len(models) < 2 or remaining < LEAST_REMAINING:
            return None
        model = min(models, key=lambda name: self._when_due(track, name))
        if self._when_due(track, model) > step:
            return None
        if not track.ledger.can_spend(self._prober.cost_s(model, view.num_missing_of(model))):
            return None
        ends_at = max(LEAST_OWN, self._known(track, model) + LEAST_JUDGED)
        trial = self._trials[track.name] = _Trial(view.number, model, ends_at, step)
        return trial

    def _when_due(self, track: RouteTrack, model: str) -> float:
        """Return the step from which on a model is to be tried; those that are hardly known come first."""
        known = self._known(track, model)
        if known < LEAST_OWN:
            return known - LEAST_OWN
        return self._looked_at.get((track.name, model), 0) + RETRY_STEPS

    def _end(self, track: RouteTrack, step: int) -> None:
        trial = self._trials.pop(track.name)
        self._looked_at[track.name, trial.model] = step

    def _known(self, track: RouteTrack, model: str) -> float:
        return self._acceptance.of(track.name, model).calibration.counts.total
