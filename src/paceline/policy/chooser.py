"""Draft lengths of all adaptive sequences in one step, and what each route would have wished for."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from paceline.config.drafter_names import SUFFIX, is_mixed
from paceline.policy.draft_lengths import Choice
from paceline.policy.interface import StepView
from paceline.policy.several_models import Arm, plans
from paceline.policy.step_planner import StepPlanner, Wanted

SHADOW_STEPS = 3
"""Steps from one look at paused routes to the next: that time falls on steps that gain nothing by it."""


ALONE_STEPS = 4
"""Steps from one comparison of look-ups alone with draft models to the next; in each as long as they are
better."""


class Length(enum.Enum):
    """Whether an answer is long enough to be speculated for."""

    ENOUGH = "enough"
    SHORT = "short"
    UNKNOWN = "unknown"
    """The route has no history, and this answer has not yet shown that it is long."""


class Wish(NamedTuple):
    """What a route would do in a step by itself."""

    would_draft: bool
    is_short: bool
    """Whether only the length of its answers speaks against it."""
    speedup: float
    arm: Arm | None
    """Its best way of drafting."""


class Outcome(NamedTuple):
    """The step's answer."""

    lengths: list[int]
    """One for each wanted sequence; 0 for those of paused routes."""
    arms: list[Arm | None]
    wishes: dict[str, Wish]
    """By route, of those that could be judged in this step."""
    choice: Choice


def choose(planner: StepPlanner, view: StepView, wanted: Sequence[Wanted], gain: float) -> Outcome:
    """Return the best draft lengths.

    Args:
        planner: with this step's costs read.
        view: the step.
        wanted: the sequences that may be chosen for, those of paused routes included.
        gain: weighted tokens of the step without drafts.
    """
    has_shadow = planner.is_due("shadow", SHADOW_STEPS)
    able: list[int] = []
    ways: list[list[Arm]] = []
    is_short: dict[str, bool] = {}
    for index, one in enumerate(wanted):
        if one.track.is_paused and not has_shadow:
            continue
        length = judge_length(one)
        if length is Length.SHORT:
            is_short.setdefault(one.track.name, True)
        if length is not Length.ENOUGH:
            continue
        arms = planner.arms(one)
        if arms:
            able.append(index)
            ways.append(arms)
        if arms or not _was_worth_it(planner, one):
            is_short[one.track.name] = False
    chosen, choice = _search(planner, ways, gain)
    wishes = _wishes(wanted, able, chosen, choice, is_short)
    is_paused = [wanted[index].track.is_paused for index in able]
    if any(is_paused):
        # What paused routes would have is not had, so the others are chosen for without them.
        able = [index for index, paused in zip(able, is_paused, strict=True) if not paused]
        ways = [way for way, paused in zip(ways, is_paused, strict=True) if not paused]
        chosen, choice = _search(planner, ways, gain)
    planner.end(choice)
    final = choice
    if view.num_prompt_rows and any(choice.lengths):
        # Prompt rows have to be computed at some time; what a second is worth is what it is without them.
        final = planner.choose(chosen, gain, choice.price)
    lengths = [0] * len(wanted)
    arms_of: list[Arm | None] = [None] * len(wanted)
    for index, arm, count in zip(able, chosen, final.lengths, strict=True):
        lengths[index], arms_of[index] = count, arm
    return Outcome(lengths, arms_of, wishes, choice)


def _was_worth_it(planner: StepPlanner, one: Wanted) -> bool:
    """Whether drafting was worth beginning when the answer began.

    If so, it is not worth it any more for the answer's rest alone, since its draft KV is lost, and that says
    nothing of the next answer."""
    view = one.view
    num_output = view.num_output_tokens
    at_start = view._replace(
        num_output_tokens=0,
        num_context_tokens=view.num_context_tokens - num_output,
        num_draft_missing=max(1, view.num_context_tokens - num_output),
        most_drafts=view.most_drafts + num_output,
    )
    return any(arm.riding_value > 0 for arm in planner.arms(one._replace(view=at_start)))


def judge_length(one: Wanted) -> Length:
    """Say whether an answer is worth beginning to draft for."""
    view, track = one.view, one.track
    least = track.settings.min_output_length
    so_far = view.num_output_tokens
    if so_far + view.most_drafts + 1 < least:
        return Length.SHORT
    if track.lengths.is_known:
        is_long = so_far + track.lengths.remaining(so_far) >= least
        return Length.ENOUGH if is_long else Length.SHORT
    return Length.ENOUGH if so_far >= least or view.holds_drafts else Length.UNKNOWN


def _search(planner: StepPlanner, ways: Sequence[Sequence[Arm]], gain: float) -> tuple[list[Arm], Choice]:
    """Return each sequence's way of drafting, and the best lengths: with draft models, or with look-ups
    alone."""
    best = [arms[0] for arms in ways]
    choice = planner.choose(best, gain)
    if len(planner.passes) > 1:
        for other_best in plans(ways)[1:]:
            other = planner.choose(other_best, gain)
            if other.speedup > choice.speedup:
                best, choice = other_best, other
    is_looked_at = planner.looks_up_alone or planner.is_due("alone", ALONE_STEPS)
    if is_looked_at and any(arm.drafter != SUFFIX for arm in best):
        # A draft pass is paid for by all who take part, so it may be better if nobody does.
        looked_up = [next((arm for arm in arms if arm.drafter == SUFFIX), None) for arms in ways]
        if all(arm is not None for arm in looked_up) and looked_up:
            alone = [arm for arm in looked_up if arm is not None]
            other = planner.choose(alone, gain)
            planner.looks_up_alone = other.gain / other.seconds > choice.gain / choice.seconds
            if planner.looks_up_alone:
                return alone, other
    return best, choice


def _wishes(
    wanted: Sequence[Wanted],
    able: Sequence[int],
    chosen: Sequence[Arm],
    choice: Choice,
    is_short: dict[str, bool],
) -> dict[str, Wish]:
    wishes = {name: Wish(False, short, 1.0, None) for name, short in is_short.items()}
    for index, arm, length in zip(able, chosen, choice.lengths, strict=True):
        name = wanted[index].track.name
        known = wishes[name]
        wishes[name] = Wish(
            known.would_draft or length > 0,
            False,
            choice.speedup,
            known.arm if known.arm is not None else arm,
        )
    return wishes


def asks_model(arm: Arm) -> bool:
    """Whether this way of drafting may run a draft model."""
    return arm.drafter != SUFFIX


def uses_match(arm: Arm) -> bool:
    """Whether this way of drafting may take a suffix match."""
    return arm.drafter == SUFFIX or is_mixed(arm.drafter)
