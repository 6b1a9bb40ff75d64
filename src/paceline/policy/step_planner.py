"""The numbers of one step: what each sequence's draft is worth, and the best lengths for all of them
together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from paceline.config.drafter_names import MODEL, SUFFIX, is_mixed, mixed_with, model_of, models_of, with_mixed
from paceline.policy.acceptance import Acceptance, SourceAcceptance
from paceline.policy.calibration import AcceptanceLevel
from paceline.policy.draft_lengths import Candidate, Choice, best_lengths, slots_of
from paceline.policy.interface import SequenceView, StepView
from paceline.policy.profile import NOTHING, Prices, Profile
from paceline.policy.replay import mixed
from paceline.policy.rule import Member, StepRule
from paceline.policy.several_models import Arm, Passes, choose_in_turn
from paceline.policy.step_costs import PREFILL_ROWS, StepCosts
from paceline.policy.tracks import CachedProfile, CutProfile, RouteTrack

CATCH_UP_FREE = 8
"""Missing tokens up to which a draft model's first pass hardly takes longer."""
PROFILE_STEPS = 24
"""Steps after which a profile is computed anew, or earlier where prices or acceptance moved."""
PRICE_CHANGE = 0.15
ACCEPTANCE_CHANGE = 0.1
"""In log-odds."""
LEAST_GAIN = 0.02
"""Goodput that drafting must add before it is done, if all sequences draft: estimates are no better than
that."""
LEAST_LOOKUP_GAIN = 0.002
"""The same for look-ups alone, where the engine asks the rule of each step. What they find gets a row only
where its own confidence pays for it at the moment's prices (`rule.StepRule.lengths`), so a wrong estimate
costs no more than looking; and where matches are rare but sure, the mean over all steps is little while those
steps gain much."""


def _by_value(arm: Arm) -> float:
    return -arm.value


class Wanted(NamedTuple):
    """A sequence that the policy may choose for."""

    view: SequenceView
    track: RouteTrack
    most: int


class StepPlanner:
    """Turns views into draft lengths, at prices that it carries from step to step."""

    def __init__(self, costs: StepCosts, acceptance: Acceptance, *, asks_rule: bool = True) -> None:
        self._least_lookup_gain = LEAST_LOOKUP_GAIN if asks_rule else LEAST_GAIN
        self._costs = costs
        self._acceptance = acceptance
        self._price = self._plain_price = 0.0
        self._speedup = 1.0
        """Price of a second / what it is worth without drafts: that lasts where the load does not."""
        self._row_s = 0.0
        self.looks_up_alone = False
        """Whether draft models were left out when that was last looked at."""
        self.prices = Prices(0.0, 0.0)
        self._step = 0
        self._done_at_step: dict[str, int] = {}

    def is_due(self, what: str, every: int) -> bool:
        """Whether something that is done every so many steps is to be done in this one; if so, it counts as
        done."""
        last = self._done_at_step.get(what)
        if last is not None and 0 <= self._step - last < every:
            return last == self._step
        self._done_at_step[what] = self._step
        return True

    def begin(
        self, view: StepView, step: int, gain: float, num_wanted: int, most: int, models: Sequence[str]
    ) -> None:
        """Read this step's costs.

        Args:
            view: the step.
            step: its number.
            gain: weighted tokens of the step without drafts.
            num_wanted: sequences that may draft.
            most: drafts that all of them may have together.
            models: the draft models whose passes are counted.
        """
        self._step = step
        self._arms: dict[tuple[Hashable, ...], list[Arm]] = {}
        self._reading: dict[str, list[float]] = {}
        self.num_sequences = len(view.sequences)
        self.context = float(sum(s.num_context_tokens for s in view.sequences))
        self.base_rows = self.num_sequences + view.num_prompt_rows
        size = most + 2
        self.verify_alone = self._costs.verify_table(
            self.num_sequences, self.context, self.num_sequences, size
        )
        self.verify = (
            self.verify_alone
            if not view.num_prompt_rows
            else self._costs.verify_table(self.num_sequences, self.context, self.base_rows, size)
        )
        self._plain_price = gain / float(self.verify_alone[0])
        self._price = self._speedup * self._plain_price
        if not self._row_s:
            self._row_s = _row_seconds(self.verify_alone, 0.0)
        self.passes = {model: self._passes(model, max(num_wanted, 1)) for model in models or (MODEL,)}
        self._first = next(iter(self.passes.values()))
        self.prices = self._first.prices
        self._verify_s: list[float] = self.verify.tolist()
        self._draft_s: dict[str, list[float]] = {
            model: passes.seconds.tolist() for model, passes in self.passes.items()
        }

    def rule(self, members: dict[int, Member]) -> StepRule:
        """Return the rule of a step at the prices of now.

        Args:
            members: that may draft, by sequence number.
        """
        draft_s = self._draft_s
        first = next(iter(draft_s.values()))
        return StepRule(members, self.prices, self._price, self._verify_s, first, draft_s)

    def _passes(self, model: str, num_wanted: int) -> Passes:
        draft = self._costs.draft(model).table(num_wanted + 2)[: num_wanted + 2]
        last = min(num_wanted, len(draft) - 1)
        row, share_s = self._price * self._row_s, float(draft[last]) / num_wanted
        # What a sequence adds to a pass that others make anyway.
        more_s = max(0.0, float(draft[last] - draft[last - 1]))
        return Passes(draft, Prices(row, self._price * share_s), Prices(row, self._price * more_s))

    def end(self, choice: Choice) -> None:
        """Take over the prices that follow from a step's best lengths."""
        row_s = _row_seconds(self.verify_alone, choice.rows)
        # From the last step alone prices might swing between two answers; their mean settles.
        self._speedup += 0.5 * (choice.price / self._plain_price - self._speedup)
        self._price = self._speedup * self._plain_price
        self._row_s += 0.5 * (row_s - self._row_s)

    @property
    def price(self) -> float:
        """Weighted tokens that a second is worth."""
        return self._price

    def arms(self, wanted: Wanted) -> list[Arm]:
        """Return the ways in which a sequence may draft, the best first; alike for all that are alike.

        Left out is a draft model that would have to read a long text first, where that is not worth it any
        more, even if the draft passes are made for others in any case."""
        view = wanted.view
        key = (wanted.track.name, wanted.most, view.drafters, view.speculation.drafter)
        found = self._arms.get(key)
        if found is None:
            found = self._arms[key] = self._compute_arms(wanted)
        if view.num_draft_missing <= CATCH_UP_FREE and (view.held_by is None or len(self.passes) == 1):
            return found
        left = min(wanted.track.lengths.remaining(view.num_output_tokens), float(view.most_drafts + 1))
        late: list[Arm] = []
        for arm in found:
            if arm.model is None or (missing := view.num_missing_of(arm.model)) <= CATCH_UP_FREE:
                late.append(arm)
            elif (reading := self._late(arm, missing, left, wanted.track.settings.weight)) is not None:
                late.append(reading)
        late.sort(key=_by_value)
        return late

    def _late(self, arm: Arm, num_missing: int, left: float, weight: float) -> Arm | None:
        """Return a way of drafting with what the draft model has to read first, spread over later steps; none
        where it is too late for that.

        Args:
            arm: the way, for a sequence that the draft model has read.
            num_missing: tokens to be read.
            left: expected tokens of the rest of the answer.
            weight: of each.
        """
        drafter, profile, start_s, value, model_value, model, gain, riding, slots = arm
        more_s = self._catch_up_s(model or "", num_missing) / max(1.0, left / (1.0 + gain / weight))
        price = self._price * more_s
        if riding <= price:
            return None
        return Arm(
            drafter, profile, start_s + more_s, value - price, model_value - price, model, gain, riding, slots
        )

    def _catch_up_s(self, name: str, num_tokens: int) -> float:
        """Return what `StepCosts.catch_up_s` does, from a list that is made once a step."""
        seconds = self._reading.get(name)
        if seconds is None:
            seconds = self._reading[name] = (
                self._costs.draft(name).table(PREFILL_ROWS + 1)[: PREFILL_ROWS + 1].tolist()
            )
        full, rest = divmod(num_tokens, PREFILL_ROWS)
        return full * seconds[PREFILL_ROWS] + (seconds[rest] if rest else 0.0)

    def _compute_arms(self, wanted: Wanted) -> list[Arm]:
        view, track, most = wanted
        names = with_mixed(track.settings.drafters)
        if view.speculation.drafter is not None:
            names = (view.speculation.drafter,)
        here = [name for name in names if name in view.drafters]
        found: list[Arm] = []
        for model in models_of(here):
            arm = self._arm(track, model, model, most, 0.0)
            arm = arm._replace(model_value=arm.value)
            if model in here:
                found.append(arm)
            mix = mixed_with(model)
            if mix is not None and mix in here:
                # Looking up costs next to nothing and only what is worth more is taken, so of equals this one
                # is best: it is how the worth of matches stays known.
                both = self._arm(track, mix, model, most, 0.0)
                found.insert(0, both._replace(model_value=arm.value, start_s=self._costs.lookup_s))
        if SUFFIX in here:
            found.append(self._arm(track, SUFFIX, None, most, self._costs.lookup_s))
        found.sort(key=_by_value)
        return found

    def _arm(self, track: RouteTrack, drafter: str, model: str | None, most: int, start_s: float) -> Arm:
        passes = self._first if model is None else self.passes[model]
        prices, rides = passes.prices, passes.riding
        cached = self._profile(track, drafter, prices)
        cut = cached.cuts.get(most)
        if cut is None:
            cut = cached.cuts[most] = _cut(cached.profile, most)
        gain, rows, active = cut.gain, cut.rows, cut.active
        fixed = self._price * start_s
        value = gain - prices.row * rows - prices.draft * active - fixed
        riding = gain - rides.row * rows - rides.draft * active - fixed
        return Arm(drafter, cut.profile, start_s, value, 0.0, model, gain, riding, cut.slots)

    def choose(self, arms: Sequence[Arm], plain_gain: float, price: float | None = None) -> Choice:
        """Return the best lengths for sequences that draft in these ways."""
        verify = self.verify_alone if price is None else self.verify
        models = {arm.model for arm in arms} - {None}
        if len(models) > 1:
            choice = choose_in_turn(arms, plain_gain, verify, self.passes, price)
        else:
            candidates = [Candidate(arm.profile, arm.start_s, arm.slots) for arm in arms]
            passes = self.passes[next(iter(models))] if models else self._first  # type: ignore[index]
            choice = best_lengths(candidates, plain_gain, verify, passes.seconds, price)
        least = sum(
            self._least_lookup_gain if arm.model is None else LEAST_GAIN
            for arm, length in zip(arms, choice.lengths, strict=True)
            if length
        ) / max(1, self.num_sequences)
        if least and price is None and choice.speedup < 1 + least:
            return choice._replace(
                lengths=[0] * len(arms),
                gain=choice.plain_gain,
                seconds=choice.plain_seconds,
                rows=0.0,
                price=choice.plain_gain / choice.plain_seconds,
            )
        return choice

    def source(self, track: RouteTrack, name: str) -> SourceAcceptance:
        """Return what is known of a route with a source of drafts."""
        return self._acceptance.of(track.name, name)

    def _profile(self, track: RouteTrack, name: str, prices: Prices) -> CachedProfile:
        length, weight = track.settings.most_drafts, track.settings.weight
        key = (name, weight, length)
        cached = track.profiles.get(key)
        sources = (SUFFIX, model_of(name) or name) if is_mixed(name) else (name,)
        known = tuple([self.source(track, source).calibration.level for source in sources])
        if (
            cached is not None
            and self._step - cached.step < PROFILE_STEPS
            and all(_is_alike(*pair) for pair in zip(known, cached.acceptance, strict=True))
            and _is_near(cached.prices, prices)
        ):
            return cached
        profile = self._compute(track, name, length, weight, prices)
        cached = track.profiles[key] = CachedProfile(profile, prices, self._step, known)
        return cached

    def _compute(self, track: RouteTrack, name: str, length: int, weight: float, prices: Prices) -> Profile:
        if not is_mixed(name):
            return self.source(track, name).replay.profile(length, weight, prices)
        model = self._profile(track, model_of(name) or name, prices).profile
        return mixed(self.source(track, SUFFIX).replay, model, length, weight, prices)


def _is_near(prices: Prices, now: Prices) -> bool:
    return abs(prices.row - now.row) <= PRICE_CHANGE * max(prices.row, now.row, 0.02) and abs(
        prices.draft - now.draft
    ) <= PRICE_CHANGE * max(prices.draft, now.draft, 0.02)


def _is_alike(now: AcceptanceLevel, then: AcceptanceLevel) -> bool:
    return (
        now.num_breaks == then.num_breaks
        and abs(now.theta - then.theta) <= ACCEPTANCE_CHANGE
        and now.num_observed <= 2 * then.num_observed + 8
    )


def _row_seconds(table: np.ndarray, rows: float) -> float:
    """Return the mean seconds of a draft row, for as many as there are now or the number at which it is
    least.

    The least, so that a bump among the first few rows does not hide what lies behind it: it is the search
    that settles what rows really cost."""
    first = min(max(1, int(rows)), len(table) - 1)
    counts = np.arange(first, len(table))
    return max(0.0, float(((table[first:] - table[0]) / counts).min()))


def _cut(profile: Profile, most: int) -> CutProfile:
    if most <= 0:
        profile = NOTHING
    elif most < len(profile.gain):
        profile = Profile(profile.gain[:most], profile.rows[:most], profile.active[:most])
    gain, rows, active = (float(part.sum()) for part in profile)
    return CutProfile(profile, gain, rows, active, slots_of(profile))
