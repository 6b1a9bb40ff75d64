"""The numbers behind a decision: what drafting costs at this load, and the acceptance that would pay for
it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.config.drafter_names import SUFFIX, models_of
from paceline.policy.acceptance import Acceptance
from paceline.policy.draft_lengths import Candidate, best_lengths
from paceline.policy.interface import StepView
from paceline.policy.profile import Prices
from paceline.policy.states import Situation
from paceline.policy.step_costs import StepCosts
from paceline.policy.step_planner import LEAST_GAIN
from paceline.policy.tracks import RouteTrack

TYPICAL_LENGTH = 3
"""Drafts that a sentence speaks of, where none are being verified."""


def emitted(acceptance: float, length: int) -> float:
    """Return expected tokens of a step with k drafts, each accepted independently: (1 - a^(k+1)) / (1 -
    a)."""
    return sum(acceptance**j for j in range(length + 1))


class Surroundings(NamedTuple):
    """What a step is like apart from the route in question."""

    sequences: int
    """Of all routes."""
    of_route: int
    context: float
    """Positions of all sequences together."""
    other_rows: float
    """Draft rows that other routes bring."""
    price: float
    """Weighted tokens that a second is worth."""


def seconds_added(
    costs: StepCosts, model: str | None, around: Surroundings, length: int
) -> tuple[float, float]:
    """Return seconds that so many drafts for each sequence of the route add to a step, and those it has
    without.

    Args:
        costs: of the machine.
        model: the draft model whose passes count; none for look-ups.
        around: the step.
        length: drafts of each.
    """
    others = round(around.other_rows)
    rows = around.of_route * length
    table = costs.verify_table(around.sequences, around.context, around.sequences, others + rows + 1)
    passes = 0.0 if model is None else length * costs.draft(model).seconds(around.of_route)
    before = float(table[others])
    return float(table[others + rows]) - before + passes, before


def break_even(ratios: dict[int, float]) -> float | None:
    """Return the acceptance rate at which the best of several draft lengths gains nothing.

    Args:
        ratios: cost ratio by draft length.

    Returns:
        None where no acceptance makes up for the cost.
    """
    found = [rate for length, ratio in ratios.items() if (rate := _break_even(ratio, length)) is not None]
    return min(found, default=None)


def _break_even(ratio: float, length: int) -> float | None:
    if ratio > length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if emitted(middle, length) < ratio else (low, middle)
    return high


def describe(
    track: RouteTrack,
    view: StepView,
    costs: StepCosts,
    acceptance: Acceptance,
    other_rows: float,
    price: float,
) -> Situation:
    """Return the numbers for a route at this moment.

    Args:
        track: the route.
        view: the step.
        costs: of the machine.
        acceptance: what is known of it.
        other_rows: draft rows that other routes bring to the step.
        price: weighted tokens that a second is worth; 0 takes what it is without drafts.
    """
    sequences = max(1, len(view.sequences))
    context = float(sum(s.num_context_tokens for s in view.sequences))
    of_route = max(1, sum(s.route == track.name for s in view.sequences) or sequences)
    plain_price = sequences / costs.plain_s(sequences, context)
    around = Surroundings(sequences, of_route, context, other_rows, max(price, plain_price))
    model = main_model(track)
    lengths = range(1, min(track.settings.most_drafts, 8) + 1)
    # Per sequence of the route, in tokens: what drafting takes away from everybody, and one token as before.
    dear = around.price / (of_route * track.settings.weight)
    added = {length: seconds_added(costs, model, around, length) for length in lengths}
    ratios = {length: 1 + dear * seconds for length, (seconds, _) in added.items()}
    typical = min(_usual_length(track), max(lengths))
    more, before = added[typical]
    source = acceptance.of(track.name, model or SUFFIX)
    return Situation(
        concurrency=sequences,
        of_route=of_route,
        rows_each=typical + 1,
        cost_ratio=(before + more) / before,
        break_even=break_even(ratios),
        acceptance=source.first_chance if source.replay.num_kept else None,
        speedup=track.speedup,
        output_length=track.lengths.mean,
        kv_share=view.num_blocks_used / view.num_blocks if view.num_blocks else None,
    )


def pays_alone(track: RouteTrack, view: StepView, costs: StepCosts, acceptance: Acceptance) -> bool:
    """Whether one sequence of the route by itself would gain by drafting."""
    context = float(np.mean([s.num_context_tokens for s in view.sequences])) if view.sequences else 0.0
    most, weight = track.settings.most_drafts, track.settings.weight
    model = main_model(track)
    verify = costs.verify_table(1, context, 1, most + 1)
    draft = costs.draft(model or "model").table()[:3]
    price = weight / float(verify[0])
    few = min(3, most)
    prices = Prices(price * max(0.0, float(verify[few] - verify[0])) / few, price * float(draft[1]))
    profile = acceptance.of(track.name, model or SUFFIX).replay.profile(most, weight, prices)
    return best_lengths([Candidate(profile)], weight, verify, draft).speedup >= 1 + LEAST_GAIN


def main_model(track: RouteTrack) -> str | None:
    """Return the draft model that a route mostly uses, or before any was, the first that it may; none if it
    only looks up."""
    if track.source == SUFFIX:
        return None
    models = models_of(track.settings.drafters)
    return track.source if track.source in models else next(iter(models), None)


def _usual_length(track: RouteTrack) -> int:
    counts = track.draft_lengths[1:]
    total = sum(counts)
    if total < 1:
        return TYPICAL_LENGTH
    return max(1, round(sum(length * count for length, count in enumerate(counts, 1)) / total))
