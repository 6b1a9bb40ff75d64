"""Which settings are worth timing: every drafter at every draft length, on paper, and the best of them.

Two models of a load are used. The quick one takes each step for the mean one, at a steady number of
sequences; it looks at everything, and at more clients than anything is timed with. The other one makes the
closed loop step by step (`measure.forecast`), for the few that the quick one puts first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.measure.forecast import LoopRequest, forecast
from paceline.measure.replay import Tally, Trace, tally
from paceline.measure.setting import MIXED, MODEL, SUFFIX, Setting
from paceline.policy.step_costs import StepCosts

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Draft lengths that are looked at, as far as they are allowed."""
LOADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Clients for the search of the load at which speculation stops helping."""
NUM_LOOKED_AT = 4
CLOSE = 0.95
"""Another drafter is timed too where it is forecast within so much of the best."""
HOPELESS = 0.9
"""Below so much of plain decoding, forecast, the policy is not timed: it would not draft."""
MODEL_WORTH = 1.02
"""What the draft model has to bring over plain decoding somewhere for `auto` to be timed with it."""
READ_ROWS = 256
SOURCES = (MODEL, SUFFIX, MIXED)


@dataclass(frozen=True, slots=True)
class RouteText:
    """The answers of a route, and what each drafter would have drafted for them."""

    lengths: tuple[tuple[int, int, int], ...]
    """(prompt tokens, output tokens, most output tokens) of each answer."""
    traces: Mapping[str, tuple[Trace, ...]]
    """By drafter: "model", "suffix", "mixed"."""
    _tallies: dict[tuple[str, int], list[Tally]] = field(default_factory=dict, repr=False, compare=False)

    def tallies(self, drafter: str, draft_length: int) -> list[Tally]:
        """Return what each answer comes to with a drafter at a draft length."""
        key = (drafter, draft_length)
        if key not in self._tallies:
            self._tallies[key] = [
                tally(trace, limit, draft_length)
                for trace, (_, _, limit) in zip(self.traces[drafter], self.lengths, strict=True)
            ]
        return self._tallies[key]

    def loop(self, drafter: str | None, at_least: int) -> list[LoopRequest]:
        """Return the requests of a closed loop, again from the first while there are too few of them."""
        traces = self.traces.get(drafter or "", (None,) * len(self.lengths))
        once = [
            LoopRequest(prompt, output, trace, limit)
            for (prompt, output, limit), trace in zip(self.lengths, traces, strict=True)
        ]
        return once * -(-at_least // max(1, len(once)))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The mean step of a setting at a load, and what goes with it; estimates."""

    plain_s: float
    """Of a step without drafts."""
    draft_s: float
    verify_s: float
    tokens_per_step: float
    """Emitted by each sequence, the target's own token among them."""
    tokens_per_second: float
    """Prompts included."""
    plain_tokens_per_second: float

    @property
    def step_s(self) -> float:
        """Of a step with drafts."""
        return self.draft_s + self.verify_s

    @property
    def speedup(self) -> float:
        """Over plain decoding, prompts included."""
        return self.tokens_per_second / self.plain_tokens_per_second


def mean_step(
    costs: StepCosts, text: RouteText, drafter: str, draft_length: int, concurrency: int
) -> StepTimes:
    """Return the mean step of a load in which `concurrency` sequences decode at every moment."""
    tallies = text.tallies(drafter, draft_length)
    steps = max(1, sum(one.num_steps for one in tallies))
    emitted = sum(one.num_emitted for one in tallies)
    outputs = sum(output for _, output, _ in text.lengths)
    prompts = [prompt for prompt, _, _ in text.lengths]
    context = concurrency * (sum(prompts) / len(prompts) + outputs / len(prompts) / 2)
    drafted = sum(one.num_drafted for one in tallies) / steps * concurrency
    plain_s = costs.step_s(concurrency, concurrency, context)
    verify_s = _between(costs.verify_table(concurrency, context, concurrency, int(drafted) + 1), drafted)
    draft_s, read_s = 0.0, 0.0
    if any(trace.has_passes.any() for trace in text.traces[drafter]):
        by_position = [
            sum(one.drafted_by_position[place] for one in tallies) / steps * concurrency
            for place in range(draft_length)
        ]
        by_position[0] *= 1 + sum(one.num_accepted for one in tallies) / max(1, emitted)  # catching up
        share = sum(one.num_passes for one in tallies) / max(1, sum(one.num_drafted for one in tallies))
        curve = costs.draft(MODEL)
        draft_s = share * sum(curve.seconds(max(1.0, rows)) for rows in by_position if rows > 0)
        read_s = sum(costs.catch_up_s(MODEL, prompt) for prompt in prompts)
    draft_s += costs.lookup_s * concurrency * (drafter != MODEL)
    prompt_s = sum(_prompt_s(costs, prompt) for prompt in prompts)
    plain = prompt_s + sum(max(0, output - 1) for _, output, _ in text.lengths) * plain_s / concurrency
    total = prompt_s + read_s + steps * (draft_s + verify_s) / concurrency
    return StepTimes(plain_s, draft_s, verify_s, emitted / steps, outputs / total, outputs / plain)


def _between(table: NDArray[np.float64], where: float) -> float:
    low = int(where)
    return float(table[low] + (where - low) * (table[min(low + 1, len(table) - 1)] - table[low]))


def _prompt_s(costs: StepCosts, num_tokens: int) -> float:
    full, rest = divmod(num_tokens, READ_ROWS)
    seconds = full * costs.step_s(READ_ROWS, 1, 0.0)
    return seconds + (costs.step_s(rest, 1, 0.0) if rest else 0.0)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one setting is expected to do at one load."""

    setting: Setting
    tokens_per_second: float
    speedup: float


def ranked(
    costs: StepCosts, text: RouteText, concurrency: int, most_drafts: int, draft: str | None
) -> list[Forecast]:
    """Return the settings with fixed draft lengths that are forecast to be fastest at a load, best first; of
    each drafter that has one, its best.

    Args:
        costs: of steps, with this draft model.
        text: of the route.
        concurrency: clients.
        most_drafts: longest draft.
        draft: name of the draft model, if it has one.
    """
    plain = forecast(costs, text.loop(None, concurrency), concurrency).tokens_per_second
    quick = sorted(
        (
            (mean_step(costs, text, drafter, length, concurrency).speedup, drafter, length)
            for drafter in SOURCES
            if drafter in text.traces
            for length in LENGTHS
            if length <= most_drafts
        ),
        reverse=True,
    )
    best_of = {drafter: one for one in reversed(quick) for drafter in (one[1],)}
    looked_at = {(drafter, length) for _, drafter, length in [*quick[:NUM_LOOKED_AT], *best_of.values()]}
    found: dict[str, Forecast] = {}
    for drafter, length in sorted(looked_at):
        on = forecast(costs, text.loop(drafter, concurrency), concurrency, length)
        drafters = {MODEL: (MODEL,), SUFFIX: (SUFFIX,), MIXED: (SUFFIX, MODEL)}[drafter]
        setting = Setting(drafters, length, None if drafter == SUFFIX else draft)
        one = Forecast(setting, on.tokens_per_second, on.tokens_per_second / plain)
        if drafter not in found or one.speedup > found[drafter].speedup:
            found[drafter] = one
    return sorted(found.values(), key=lambda one: (-one.speedup, len(one.setting.drafters)))


def worth_timing(by_load: Mapping[int, Sequence[Forecast]]) -> dict[int, list[Setting]]:
    """Return what to time at each load, besides plain decoding, the most important first.

    The policy, unless nothing comes near plain decoding at any load, and with the draft model unless that is
    forecast to gain nowhere; and the best fixed setting, with another drafter's where it is close.
    """
    every = [one for found in by_load.values() for one in found]
    auto = []
    if max((one.speedup for one in every), default=0.0) >= HOPELESS:
        gaining = [one for one in every if one.setting.needs_model and one.speedup >= MODEL_WORTH]
        best = max(gaining, key=lambda one: one.speedup, default=None)
        auto.append(
            Setting((SUFFIX,)) if best is None else Setting((SUFFIX, MODEL), None, best.setting.draft)
        )
    return {
        concurrency: auto + [one.setting for one in found[:2] if one.speedup >= CLOSE * found[0].speedup]
        for concurrency, found in by_load.items()
    }


def crossing(
    costs: StepCosts, text: RouteText, settings: Sequence[Setting]
) -> list[tuple[int, float, float, str]]:
    """Return (clients, plain tokens/s, tokens/s of the best setting, that setting) at each of `LOADS`."""
    points = []
    for concurrency in LOADS:
        found = [
            (mean_step(costs, text, one.drafter, one.draft_length, concurrency), one.label)
            for one in settings
            if one.draft_length is not None
        ]
        best, label = max(found, key=lambda one: one[0].tokens_per_second)
        points.append((concurrency, best.plain_tokens_per_second, best.tokens_per_second, label))
    return points
