"""The policy itself: asked for draft lengths before each step, told what came of it after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.drafter_names import SUFFIX, models_of
from paceline.policy.acceptance import LEAST_OWN, Acceptance
from paceline.policy.chooser import Outcome, asks_model, choose, uses_match
from paceline.policy.counterfactual import ControlWindows
from paceline.policy.decision_log import DecisionLog
from paceline.policy.draft_lengths import Choice
from paceline.policy.fixed_choices import by_who_chooses, fixed_member, models_in
from paceline.policy.held_plan import HeldPlan
from paceline.policy.history import History
from paceline.policy.interface import PLAIN, RELEASED, DraftChoice, DraftPlan, StepView
from paceline.policy.learning import Learner, ServedTotals
from paceline.policy.model_trials import ModelTrials
from paceline.policy.past import Past
from paceline.policy.probing import Prober
from paceline.policy.reports import RouteReport, report
from paceline.policy.routes import RouteSettings, RouteTable, Speculation
from paceline.policy.rule import Member, StepRule
from paceline.policy.several_models import Arm
from paceline.policy.state_keeper import StateKeeper
from paceline.policy.states import PauseReason, state_word
from paceline.policy.step_costs import CalibratedCosts, StepCosts
from paceline.policy.step_planner import StepPlanner, Wanted
from paceline.policy.tracks import RouteTrack
from paceline.records import GenerationResult, SpeculationParams
from paceline.step_records import StepRecord


class SpeculationPolicy:
    """Speculates where it pays, stops where it does not, and says why.

    Args:
        routes: what is allowed. Its settings may be replaced at any time; the next step goes by them.
        costs: calibrated step costs; none begins with a guess.
        log: where decisions go; none keeps them in memory.
        log_path: file of decisions, where no `log` is given.
        model: what the draft model is called, where there is no more than one.
        asks_rule: whether the engine asks a plan's rule which drafts get a row; else each is verified.

    Deterministic: equal views and records give equal answers. Not thread-safe.
    """

    def __init__(
        self,
        routes: RouteTable,
        costs: CalibratedCosts | None = None,
        *,
        log: DecisionLog | None = None,
        log_path: Path | None = None,
        model: str = "model",
        asks_rule: bool = True,
    ) -> None:
        self.routes = routes
        self.costs = StepCosts(costs)
        self.acceptance = Acceptance()
        self.log = log or DecisionLog(log_path)
        self.control = ControlWindows()
        self.step = 0
        """Steps that were planned."""
        self.speedup = 1.0
        """Expected of the last step: goodput / goodput without drafts."""
        self._model = model
        self._tracks: dict[str, RouteTrack] = {}
        self._of_label: dict[str | None, RouteTrack] = {}
        self._planner = StepPlanner(self.costs, self.acceptance, asks_rule=asks_rule)
        self._states = StateKeeper(self.costs, self.acceptance, self.log)
        self._past = Past(routes, self.acceptance, self._states)
        self._prober = Prober(self.costs, self.acceptance)
        self._trials = ModelTrials(self._prober, self.acceptance)
        self._learner = Learner(self.costs, self.acceptance, self.control, self._track_of, model)
        self._rule: StepRule | None = None
        self._held: HeldPlan | None = None

    def check(self, route: str | None, speculation: SpeculationParams) -> None:
        """Refuse a request of a route that is not there; see `DraftPolicy.check`."""
        self.routes.resolve(route)

    def plan(self, view: StepView) -> DraftPlan:
        """Choose draft lengths for a step."""
        self.step += 1
        self._rule = None
        self._of_label.clear()
        self._prober.begin(view, self._tracks.values())
        self._states.look_at_memory(view, self._tracks.values(), self.step)
        held = self._held
        if held is None or self.control.is_open or not held.serves(view, self.step, self._versions):
            held = self._plan_anew(view)
            if held is not None:
                held = held.after(self._held)
            self._held = held
        if held is None:
            return DraftPlan([PLAIN] * len(view.sequences))
        if held.choice is not None and any(held.choice.lengths) and not view.num_prompt_rows:
            self._consider_control(view, held.choice)
        return self._answer(view, held)

    def on_step(self, record: StepRecord) -> None:
        """Learn from a step."""
        for track, slow, fast in self._learner.on_step(record, self._rule, self._prober):
            self._states.note_drift(track, slow, fast, record.began_at, self.step)

    def on_finish(self, result: GenerationResult) -> None:
        """Learn from an answer that ended."""
        self._learner.on_finish(result)

    def wants_scored(self, route: str | None) -> str | None:
        """Return the draft model that a route knows least, if its acceptance is in question: the route is
        paused for it, or has hardly any history."""
        track = self._track_of(route)
        models = models_of(track.settings.drafters)
        if track.settings.speculation is not Speculation.AUTO or not models:
            return None
        known = {model: self.acceptance.of(track.name, model).calibration.counts.total for model in models}
        model = min(models, key=known.__getitem__)
        if track.reason is PauseReason.ACCEPTANCE:
            return model
        is_in_question = known[model] < LEAST_OWN and track.reason is not PauseReason.SHORT_OUTPUTS
        return model if is_in_question else None

    def on_scored(self, route: str | None, model: str, scored: Sequence[tuple[float, bool]]) -> None:
        """Learn from text that a draft model scored in idle time."""
        self.acceptance.of(self._track_of(route).name, model).observe_scored(scored)

    @property
    def totals(self) -> ServedTotals:
        """Time as it was and as it would have been without drafts, all routes together; to be read."""
        return self._learner.totals

    def set_route(self, name: str, settings: RouteSettings, *, by: str, now: float) -> None:
        """Put a person's settings in force from the next step on, and record it.

        Raises:
            ConfigError: there is no such route.
        """
        track = self._track(name) if name in self.routes else None
        before = "" if track is None else state_word(track.state, track.reason)
        self.routes.replace(name, settings)
        track = self._track(name)
        self._states.note_setting(track, before, settings, by=by, now=now, step=self.step)

    def report(self, name: str) -> RouteReport:
        """Return all there is to know of a route; KeyError if there is none of that name."""
        return report(self._track(name), self.acceptance, self.step)

    def reports(self) -> dict[str, RouteReport]:
        """Return the reports of all routes by name."""
        return {name: self.report(name) for name in self.routes.names}

    def knowledge(self) -> Mapping[str, Any]:
        """Return how well costs are known: errors of their predictions, and the machine's speed."""
        return {
            "is_guess": self.costs.is_guess,
            "step_error": self.costs.median_error,
            "target_error": self.costs.target.median_error,
            "draft_error": {name: curve.median_error for name, curve in self.costs.drafts.items()},
            "speed": self.costs.target.speed,
        }

    def history(self) -> History:
        """Return what is known of routes, to be kept for another process (`HistoryStore`)."""
        return self._past.history(self._tracks)

    def restore(self, history: History) -> tuple[str, ...]:
        """Begin with an earlier process's history, aged; see `policy/past.py`. Before anything is served.

        Args:
            history: of the same target and draft models.

        Returns:
            Names of its routes that there are.
        """
        return self._past.take(history, self._tracks)

    def _track(self, name: str) -> RouteTrack:
        settings, track = self.routes[name], self._tracks.get(name)
        if track is None:
            track = self._tracks[name] = self._states.new_track(name, settings)
            self._past.meet(track)
        elif track.settings is not settings:
            track.settings = settings
            track.profiles.clear()
            self._states.follow_settings(track)
        return track

    def _track_of(self, label: str | None) -> RouteTrack:
        track = self._of_label.get(label)
        if track is None:
            track = self._of_label[label] = self._track(self.routes.resolve(label))
        return track

    @property
    def _versions(self) -> tuple[int, ...]:
        return self.routes.version, self._states.version, self.acceptance.num_breaks

    def _plan_anew(self, view: StepView) -> HeldPlan | None:
        """Return the plan for this step; none while a control window is open."""
        fixed, wanted = by_who_chooses(view, self._track_of)
        outcome, has_several = None, False
        if fixed or wanted:
            most = sum(one.most for one in wanted.values()) + sum(c.draft_length for c in fixed.values())
            gain = sum([self._track_of(one.route).settings.weight for one in view.sequences])
            models = models_in(view) or [self._model]
            has_several = len(models) > 1
            self._planner.begin(view, self.step, gain, len(wanted) + len(fixed), most, models)
            if self.control.is_open:
                return None
            outcome = self._choose(view, list(wanted.values()), gain)
        choices = [RELEASED if one.holds_drafts else PLAIN for one in view.sequences]
        members: dict[int, Member] = {}
        asking: list[tuple[int, Wanted]] = []
        for place, choice in fixed.items():
            choices[place] = choice
            members[view.sequences[place].number] = fixed_member(choice.draft_length)
        if outcome is not None:
            for (place, one), arm, length in zip(wanted.items(), outcome.arms, outcome.lengths, strict=True):
                if one.track.is_paused:
                    if self._prober.may_ask(one):
                        asking.append((place, one))
                    continue
                if has_several:
                    asking.append((place, one))
                if arm is not None and length:
                    choices[place] = DraftChoice(length, arm.drafter)
                    members[one.view.number] = self._member(one, arm, length)
                else:
                    choices[place] = PLAIN
        return HeldPlan(
            self.step, self._versions, view.num_prompt_rows, tuple(view.sequences), tuple(choices), members,
            tuple(asking), None if outcome is None else outcome.choice,
            frozenset(one.track.name for one in wanted.values() if one.track.would_draft),
        )  # fmt: skip

    def _choose(self, view: StepView, wanted: list[Wanted], gain: float) -> Outcome:
        outcome = choose(self._planner, view, wanted, gain)
        self._states.update(outcome, self._tracks, view, self.step)
        self.speedup = outcome.choice.speedup
        return outcome

    def _consider_control(self, view: StepView, choice: Choice) -> None:
        self.control.consider(
            len(view.sequences),
            choice.plain_seconds,
            choice.speedup,
            is_checked=lambda: all(self._track_of(one.route).is_checked for one in view.sequences),
        )

    def _answer(self, view: StepView, held: HeldPlan) -> DraftPlan:
        choices, members = held.choices, held.members
        probes: dict[int, DraftChoice] = {}
        for place, one in held.asking:
            track, sequence = one.track, view.sequences[place]
            if track.is_paused and track.watcher not in (None, sequence.number):
                continue
            ask = self._prober.choice if track.is_paused else self._trials.choice
            probe = ask(Wanted(sequence, track, one.most), self.step)
            if probe is not None:
                probes[place] = probe
        if probes:
            choices = tuple(probes.get(place, choice) for place, choice in enumerate(choices))
            members = members | {
                view.sequences[place].number: fixed_member(probe.draft_length)
                for place, probe in probes.items()
                if probe.draft_length
            }
        if members:
            self._rule = self._planner.rule(members)
        return DraftPlan(choices, self._rule)

    def _member(self, one: Wanted, arm: Arm, length: int) -> Member:
        name = arm.model or self._model
        return Member(
            weight=one.track.settings.weight,
            most=length,
            model=self._planner.source(one.track, name).replay if asks_model(arm) else None,
            suffix=self._planner.source(one.track, SUFFIX).replay if uses_match(arm) else None,
            model_value=arm.model_value,
        )
