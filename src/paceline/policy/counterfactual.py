"""What a route's tokens per second would be without speculation: estimated always, checked by experiment.

*Estimate.* For each step in which nobody prefills, the time that a plain step of the same batch would have
taken is known from the step costs. A route with n of the sequences would have had n tokens in that time; what
it had in the step's own time is counted. The ratio of both sums is the speedup.

*Check.* Now and then the whole engine runs a few steps at k = 0, which changes no answer. Such a window is
compared with the speculating windows just before and just after it, of the same batch: the route's tokens per
second there, over one token a step here. The logarithms of these ratios give a mean and, by Student's t, a 95
% interval. Until that is within five points, the figure is an estimate that was not checked."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from paceline.policy.ledger import Ledger

MEMORY_STEPS = 1500.0
KEPT = 1 - 1 / MEMORY_STEPS
WINDOW_STEPS = 8
"""Few enough that a draft model catches up in one pass."""
SIDE_STEPS = 32
"""Most steps of a window beside it: these cost nothing, and their tokens are what varies."""
NUM_WINDOWS = 48
CHECKED_WITHIN = 0.05
"""Half the width of the interval, as a share of the figure."""
CONTROL_SHARE = 0.01
"""Of the time that control windows may cost."""
LEAST_BETWEEN = 120
"""Steps between two control windows, until the figure is checked; then ten times as many."""
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12)
"""97.5 % points of Student's t for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True)
class SpeedupFigure:
    """Tokens per second as served / without speculation."""

    estimate: float | None
    """From the step costs; none before anything was served."""
    low: float | None
    """95 % interval of the control windows; none before there were three."""
    high: float | None
    num_windows: int
    served_tokens_per_second: float | None
    plain_tokens_per_second: float | None

    @property
    def is_checked(self) -> bool:
        """Whether control windows bear it out to within five points."""
        if self.low is None or self.high is None:
            return False
        return (self.high - self.low) / 2 <= CHECKED_WITHIN * math.sqrt(self.low * self.high)

    @property
    def measured(self) -> float | None:
        """Geometric mean over the control windows; none before there were three."""
        return None if self.low is None or self.high is None else math.sqrt(self.low * self.high)


class RouteComparison:
    """One route's tokens, as served and as they would have been."""

    def __init__(self) -> None:
        self._served = 0.0
        self._plain = 0.0
        self._seconds = 0.0
        self._log_ratios: deque[float] = deque(maxlen=NUM_WINDOWS)

    def add_step(self, num_tokens: int, num_sequences: int, seconds: float, plain_s: float) -> None:
        """Count a step in which the route had so many tokens from so many sequences."""
        kept = KEPT
        self._served = self._served * kept + num_tokens
        self._plain = self._plain * kept + num_sequences * seconds / plain_s
        self._seconds = self._seconds * kept + seconds

    def add_window(self, ratio: float) -> None:
        """Count a control window: tokens per second beside it / in it."""
        if ratio > 0 and math.isfinite(ratio):
            self._log_ratios.append(math.log(ratio))

    def figure(self) -> SpeedupFigure:
        """Return what is known now."""
        low = high = None
        count = len(self._log_ratios)
        if count >= 3:
            values = np.array(self._log_ratios)
            mean = float(values.mean())
            t = _T95[count - 2] if count - 2 < len(_T95) else 2.0
            half = t * float(values.std(ddof=1)) / math.sqrt(count)
            low, high = math.exp(mean - half), math.exp(mean + half)
        has_served = self._plain > 0 and self._seconds > 0
        return SpeedupFigure(
            self._served / self._plain if has_served else None,
            low,
            high,
            count,
            self._served / self._seconds if has_served else None,
            self._plain / self._seconds if has_served else None,
        )


@dataclass(slots=True)
class _Window:
    """Steps of one kind, one after another, of one batch."""

    batch: int = 0
    num_steps: float = 0.0
    seconds: float = 0.0
    tokens: dict[str, float] = field(default_factory=dict)
    sequences: dict[str, float] = field(default_factory=dict)

    def add(self, batch: int, seconds: float, routes: Mapping[str, tuple[int, int]]) -> None:
        if batch != self.batch:
            self.clear(batch)
        self.num_steps += 1
        self.seconds += seconds
        for name, (num_sequences, num_tokens) in routes.items():
            self.tokens[name] = self.tokens.get(name, 0) + num_tokens
            self.sequences[name] = self.sequences.get(name, 0) + num_sequences

    def clear(self, batch: int = 0) -> None:
        self.batch, self.num_steps, self.seconds = batch, 0, 0.0
        self.tokens, self.sequences = {}, {}

    def fade(self, most: int) -> None:
        """Weigh old steps less, so that the window stays about `most` steps long."""
        if self.num_steps > 2 * most:
            self.num_steps /= 2
            self.seconds /= 2
            self.tokens = {name: count / 2 for name, count in self.tokens.items()}
            self.sequences = {name: count / 2 for name, count in self.sequences.items()}


class ControlWindows:
    """Decides when the whole engine runs plainly for a moment, and compares."""

    def __init__(self, window_steps: int = WINDOW_STEPS, share: float = CONTROL_SHARE) -> None:
        self._length = window_steps
        self.ledger = Ledger(share)
        self._before, self._control, self._after = _Window(), _Window(), _Window()
        self._phase = "before"
        self._since = 0
        self._skipped = 0
        self.num_done = 0

    @property
    def is_open(self) -> bool:
        """Whether the next step runs at k = 0."""
        return self._phase == "control"

    def give_up(self) -> None:
        """Close an open window without a comparison, where what runs next is other traffic."""
        if self.is_open:
            self._phase = "before"
            self._before.clear()

    def consider(self, batch: int, step_s: float, speedup: float, *, is_checked: Callable[[], bool]) -> None:
        """Open a window if one is due, and its cost may be spent.

        Args:
            batch: decoding sequences of the next step.
            step_s: seconds of a plain step of that batch.
            speedup: expected now; what a window gives up.
            is_checked: says whether figures are within their interval already; asked only where it matters.
        """
        self._since += 1
        if self._phase != "before" or self._since < LEAST_BETWEEN:
            return
        is_ready = self._before.batch == batch and self._before.num_steps >= self._length
        if not is_ready or (self._since < LEAST_BETWEEN * 10 and is_checked()):
            return
        cost = self._length * step_s * max(0.0, 1 - 1 / max(speedup, 1e-6))
        if self.ledger.can_spend(cost):
            self._phase = "control"
            self.ledger.spend(cost)
            self._since = 0
            self._control.clear(batch)

    def add_step(
        self,
        batch: int,
        seconds: float,
        routes: Mapping[str, tuple[int, int]],
        *,
        is_plain: bool,
        has_prompts: bool,
    ) -> dict[str, float]:
        """Take note of a step.

        Args:
            batch: sequences that decoded.
            seconds: of the step.
            routes: (sequences, tokens) of each route.
            is_plain: whether nobody drafted.
            has_prompts: whether prompts took part, which makes it useless here.

        Returns:
            The ratio of each route, when a comparison was completed with this step; else nothing.
        """
        self.ledger.earn(seconds)
        if has_prompts:
            return {}
        if self._phase == "before":
            if not is_plain:
                self._before.add(batch, seconds, routes)
                self._before.fade(SIDE_STEPS)
        elif self._phase == "control":
            self._add_control(batch, seconds, routes, is_plain=is_plain)
        elif batch != self._control.batch:
            return self._complete()
        elif self._skipped < 1:
            self._skipped += 1  # the draft model catches up, which no other step has to
        else:
            self._after.add(batch, seconds, routes)
            if self._after.num_steps >= SIDE_STEPS:
                return self._complete()
        return {}

    def _add_control(
        self, batch: int, seconds: float, routes: Mapping[str, tuple[int, int]], *, is_plain: bool
    ) -> None:
        if not is_plain and not self._control.num_steps:
            return  # the step in which the window was opened was planned before
        if batch != self._control.batch or not is_plain:
            # The batch has changed: what there is may do, if it is not too little.
            self._phase = "after" if self._control.num_steps >= self._length // 2 else "before"
        else:
            self._control.add(batch, seconds, routes)
            if self._control.num_steps >= self._length:
                self._phase = "after"
        if self._phase == "after":
            self._after.clear(self._control.batch)
            self._skipped = 0

    def _complete(self) -> dict[str, float]:
        self._phase = "before"
        control, sides = self._control, (self._before, self._after)
        ratios = _ratios(control, [side for side in sides if side.batch == control.batch])
        self._before.clear()
        self.num_done += bool(ratios)
        return ratios


def _ratios(control: _Window, sides: Iterable[_Window]) -> dict[str, float]:
    used = [side for side in sides if side.num_steps and side.seconds > 0]
    if not used or not control.num_steps:
        return {}
    plain_step_s = control.seconds / control.num_steps
    found = {}
    for name in control.sequences:
        per_side = []
        for side in used:
            sequences = side.sequences.get(name, 0)
            if sequences:
                # Tokens of a sequence in a second, here and there one token a step.
                step_s = side.seconds / side.num_steps
                per_side.append(side.tokens.get(name, 0) / sequences / step_s * plain_step_s)
        if per_side:
            found[name] = float(np.mean(per_side))
    return found
