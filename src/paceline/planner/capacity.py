"""What speculation does to a machine: best draft length by load, where it becomes 0, and requests a second.

Steady state of a closed loop: n sequences decode at once, all at the same context; each step emits tokens,
each output token brings its share of prompt rows for the sequences that follow, and the draft model reads
those prompts, too. One route is a `Workload`; routes that share a machine each take a share of its time.

This is arithmetic on step-cost curves, exact for what it assumes. How the policy fares with arrivals as
they come is for `planner.simulated` to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.planner.break_even import Acceptance, tokens_per_step
from paceline.policy.costs import CostCurve
from paceline.policy.step_planner import LEAST_GAIN

MOST_CONCURRENCY = 4096
MOST_DRAFTS = 16
"""Longest draft that is looked at; beyond, survival is next to nothing unless acceptance is."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """What passes of target and draft model cost."""

    target: CostCurve
    draft: CostCurve
    overhead_s: float = 0.0
    """Of each step beside both."""

    def step_s(self, sequences: float, draft_length: int, context: float, prompt_rows: float = 0.0) -> float:
        """Return the seconds of a step of n sequences with k drafts each, and of prompts beside them."""
        whole = max(1, round(sequences))
        rows = sequences * (draft_length + 1) + prompt_rows
        total = sequences * context
        seconds = self.target.seconds_of(rows, whole, total) + self.overhead_s
        if draft_length:
            # The first pass reads the draft model's share of prompts, too.
            seconds += self.draft.seconds_of(sequences + prompt_rows, whole, total)
            seconds += (draft_length - 1) * self.draft.seconds_of(sequences, whole, total)
        return seconds


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of traffic.

    Raises:
        ConfigError: a figure is out of range.
    """

    acceptance: Acceptance
    prompt_tokens: int
    output_tokens: int
    arrivals_per_s: float = 0.0
    name: str = "all"
    counts_prompts: bool = True
    """Whether steps carry the prompts of the sequences that follow; without, this is decoding alone."""

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens", "arrivals_per_s"):
            value = getattr(self, name)
            least = 0 if name == "arrivals_per_s" else 1
            if not least <= value < float("inf"):
                raise ConfigError(
                    given=f"{name} = {value:g} of route {self.name}",
                    expected=f"{least} or more",
                    remedy="Correct it",
                )
        tokens_per_step(self.acceptance, 0)

    @property
    def context(self) -> float:
        """Mean positions before a sequence's next row, over its answer."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """Steady state at one concurrency and draft length."""

    concurrency: int
    draft_length: int
    tokens_per_s: float
    """Of all sequences together."""
    requests_per_s: float
    token_s: float
    """Mean time between output tokens of one sequence."""


def at_load(model: StepModel, work: Workload, concurrency: int, draft_length: int) -> LoadPoint:
    """Return the steady state of n sequences with k drafts each.

    Raises:
        ConfigError: concurrency is below 1.
    """
    if concurrency < 1:
        raise ConfigError(given=f"concurrency {concurrency}", expected="1 or more", remedy="Correct it")
    emitted = concurrency * tokens_per_step(work.acceptance, draft_length)
    prompt_rows = emitted * work.prompt_tokens / work.output_tokens if work.counts_prompts else 0.0
    seconds = model.step_s(concurrency, draft_length, work.context, prompt_rows)
    speed = emitted / seconds
    return LoadPoint(concurrency, draft_length, speed, speed / work.output_tokens, concurrency / speed)


def best_at(model: StepModel, work: Workload, concurrency: int, most: int = MOST_DRAFTS) -> LoadPoint:
    """Return the steady state with the draft length of the most tokens per second.

    Length 0 stands unless another gains as much as the policy asks for before a draft model drafts
    (`LEAST_GAIN`).
    """
    plain = at_load(model, work, concurrency, 0)
    points = [at_load(model, work, concurrency, k) for k in range(1, _most_drafts(work, most) + 1)]
    best = max(points, key=lambda point: (point.tokens_per_s, -point.draft_length), default=plain)
    return best if best.tokens_per_s >= (1 + LEAST_GAIN) * plain.tokens_per_s else plain


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where gain ends as load rises."""

    concurrency: int | None
    """Least number of sequences at which nothing is gained; None if there is none up to the limit."""
    resumes: int | None = None
    """Where something is gained again: with many sequences of long context, reading their KV bounds a step,
    and drafts share it."""


def crossing(
    model: StepModel, work: Workload, most: int = MOST_DRAFTS, limit: int = MOST_CONCURRENCY
) -> Crossing:
    """Return where the best draft length becomes 0."""
    return _crossing(lambda n: best_at(model, work, n, most).draft_length > 0, limit)


def break_even_concurrency(
    model: StepModel, work: Workload, draft_length: int, limit: int = MOST_CONCURRENCY
) -> Crossing:
    """Return where one fixed draft length is no faster than plain decoding any more."""

    def gains(concurrency: int) -> bool:
        plain = at_load(model, work, concurrency, 0).tokens_per_s
        return at_load(model, work, concurrency, draft_length).tokens_per_s > plain

    return _crossing(gains, limit)


def _crossing(gains: Callable[[int], bool], limit: int) -> Crossing:
    """Look at every number of sequences up to 32 and then in strides of a sixteenth, and between those that
    differ."""
    grid = _grid(limit)
    found = [gains(n) for n in grid]
    if all(found):
        return Crossing(None)
    end = found.index(False)
    first = 1 if end == 0 else _change(gains, grid[end - 1], grid[end])
    again = next((i for i in range(end + 1, len(grid)) if found[i]), None)
    return Crossing(first, None if again is None else _change(gains, grid[again - 1], grid[again]))


def _change(gains: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number above `low` at which the answer is that at `high`."""
    wanted = gains(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if gains(middle) == wanted else (middle, high)
    return high


def most_requests(
    model: StepModel, work: Workload, most_sequences: int, token_s: float | None, *, speculates: bool
) -> LoadPoint | None:
    """Return the load of the most requests a second; None if even one sequence alone is too slow.

    Args:
        most_sequences: that memory and settings let run at once.
        token_s: longest time between a sequence's tokens; None asks for throughput alone.
        speculates: with the best draft length at each load, or without drafts.
    """
    best: LoadPoint | None = None
    for concurrency in _grid(most_sequences):
        lengths = range(_most_drafts(work, MOST_DRAFTS) + 1) if speculates else (0,)
        for length in lengths:
            point = at_load(model, work, concurrency, length)
            in_time = token_s is None or point.token_s <= token_s
            if in_time and (best is None or point.requests_per_s > best.requests_per_s):
                best = point
    return best


def groups_needed(works: Sequence[Workload], points: Sequence[LoadPoint], utilisation: float) -> int:
    """Return how many machines all routes need, each route taking its share of a machine's time.

    Args:
        works: routes with their arrivals.
        points: the most that one machine does of each alone.
        utilisation: share of that which is planned for; the rest is for arrivals that come in bunches.

    Raises:
        ConfigError: the share is not in 0 .. 1.
    """
    if not 0.0 < utilisation <= 1.0:
        raise ConfigError(
            given=f"utilisation {utilisation:g}",
            expected="more than 0, at most 1",
            remedy="Write 80 % as 0.8",
        )
    pairs = zip(works, points, strict=True)
    load = sum(work.arrivals_per_s / (utilisation * point.requests_per_s) for work, point in pairs)
    return math.ceil(load - 1e-9)


def _most_drafts(work: Workload, most: int) -> int:
    return most if isinstance(work.acceptance, int | float) else min(most, len(work.acceptance))


def _grid(limit: int) -> list[int]:
    """Return 1 .. limit, every number up to 32 and then in strides of a sixteenth."""
    found = [1]
    while found[-1] < limit:
        found.append(min(limit, found[-1] + max(1, found[-1] // 16)))
    return found
