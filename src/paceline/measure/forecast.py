"""How long a closed loop would take, without speculation or with any drafter at any length, from step costs.

Speculation changes more than the steps: sequences that end sooner leave room for prompts sooner, so that
other steps have other batches. A counterfactual at equal batch misses that. Here the whole run is made again
on paper, with the engine's own rules for who takes part in a step, and with what each drafter would have
drafted at each place of each answer (`measure.replay`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from paceline.drafters.model import MOST_CATCH_UP, PREFILL_CHUNK
from paceline.engine.scheduler import SchedulerLimits
from paceline.measure.replay import Trace, step
from paceline.policy.step_costs import StepCosts


@dataclass(frozen=True, slots=True)
class LoopRequest:
    """A request of which everything is known already."""

    num_prompt: int
    num_output: int
    trace: Trace | None = None
    """What is drafted for it; none never drafts."""
    limit: int = 0
    """Most tokens that the answer could have had; 0 is `num_output`."""
    num_reused: int = 0
    """Positions at its beginning that are computed for another request, whose KV it takes over; it waits
    for them as long as somebody runs who may compute them."""


@dataclass(slots=True)
class Forecast:
    """A run on paper: estimates of seconds, exact counts."""

    seconds: float = 0.0
    draft_s: float = 0.0
    """Of these, in drafters."""
    prompt_s: float = 0.0
    """Of these, in steps in which prompts took part."""
    num_tokens: int = 0
    num_steps: int = 0
    num_sequence_steps: int = 0
    """Steps of single sequences that emitted tokens behind the first."""
    num_drafted: int = 0
    num_accepted: int = 0
    num_draft_rows: int = 0
    """Rows of draft passes, prompts that the draft model read among them."""

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all requests / seconds."""
        return self.num_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class _Running:
    request: LoopRequest
    submitted_at: float = 0.0
    first_token_at: float = 0.0
    num_computed: int = 0
    num_emitted: int = 0
    num_draft_cached: int = 0

    @property
    def context(self) -> int:
        return self.num_computed + max(0, self.num_emitted - 1)

    @property
    def num_known(self) -> int:
        return self.request.num_prompt + self.num_emitted

    def take_over(self, most_computed: int) -> None:
        """Have what it shares with others, if it is computed by now."""
        if self.request.num_reused <= most_computed:
            self.num_computed = max(self.num_computed, self.request.num_reused)

    @property
    def must_wait(self) -> bool:
        """Whether another request has yet to compute what it will take over."""
        return self.num_computed < self.request.num_reused

    def step(self, length: int) -> tuple[int, int, int]:
        """Return (drafted, accepted, emitted) of its next step with so many drafts asked for."""
        one = self.request
        if length == 0 or one.trace is None:
            return 0, 0, 1
        return step(one.trace, self.num_emitted, one.num_output, one.limit or one.num_output, length)


@dataclass(slots=True)
class _Passes:
    """The draft passes of a step."""

    rows: list[int] = field(default_factory=list)
    num_lookups: int = 0

    def join(self, first: int, length: int) -> None:
        """Take part with `first` rows in the first pass, and with one row in each up to `length`."""
        self.rows += [0] * (length - len(self.rows))
        self.rows[0] += first
        for place in range(1, length):
            self.rows[place] += 1


def forecast(
    costs: StepCosts,
    requests: Sequence[LoopRequest],
    concurrency: int,
    draft_length: int = 0,
    *,
    draft_name: str = "model",
    limits: SchedulerLimits | None = None,
) -> Forecast:
    """Return what answering requests in a closed loop comes to.

    Args:
        costs: of steps.
        requests: in order; prompts share what they say (`num_reused`).
        concurrency: clients, each with one request at a time.
        draft_length: drafts for each sequence in each step; 0 speculates for none.
        draft_name: whose curve draft passes have.
        limits: of steps; the engine's defaults unless given.
    """
    limits = limits or SchedulerLimits()
    waiting = [_Running(one) for one in requests if one.num_output > 0]
    running: list[_Running] = []
    most_computed = 0  # positions of a prompt, by whoever computed most
    found = Forecast(num_tokens=sum(one.request.num_output for one in waiting))
    while waiting or running:
        while waiting and len(running) < concurrency:
            running.append(waiting.pop(0))
            running[-1].submitted_at = found.seconds
        decoding = [one for one in running if one.num_emitted]
        outcomes, passes = _draft(decoding, draft_length)
        num_drafted = sum(drafted for drafted, _, _ in outcomes)
        is_stuck = all(one.must_wait for one in running)
        for one in running:
            one.take_over(one.request.num_prompt if is_stuck else most_computed)
        chunks = list(_chunks(running, len(decoding), num_drafted, found.seconds, limits))
        context = float(sum(one.context for one in (*decoding, *(one for one, _ in chunks))))
        rows = len(decoding) + sum(count for _, count in chunks)
        draft_s = sum(costs.draft(draft_name).seconds(n) for n in passes.rows)
        draft_s += passes.num_lookups * costs.lookup_s
        sequences = len(decoding) + len(chunks)
        step_s = draft_s + float(costs.verify_table(sequences, context, rows, num_drafted)[-1])
        found.seconds += step_s
        found.prompt_s += step_s if chunks else 0.0
        found.draft_s += draft_s
        found.num_steps += 1
        found.num_sequence_steps += len(decoding)
        found.num_drafted += num_drafted
        found.num_draft_rows += sum(passes.rows)
        for one, (_, accepted, emitted) in zip(decoding, outcomes, strict=True):
            found.num_accepted += accepted
            one.num_emitted += emitted
        for one, count in chunks:
            one.num_computed += count
            most_computed = max(most_computed, one.num_computed)
            if one.num_computed == one.request.num_prompt:
                one.num_emitted, one.first_token_at = 1, found.seconds
        running = [one for one in running if one.num_emitted < one.request.num_output]
    return found


def _draft(decoding: Sequence[_Running], length: int) -> tuple[list[tuple[int, int, int]], _Passes]:
    """Return each sequence's outcome, and the draft passes for all of them, a draft model's rules for long
    texts that it has not read yet among them."""
    outcomes = [one.step(length) for one in decoding]
    passes, rows_left = _Passes(), PREFILL_CHUNK
    by_need = sorted(range(len(decoding)), key=lambda i: decoding[i].num_known - decoding[i].num_draft_cached)
    for index in by_need:
        one, (drafted, accepted, _) = decoding[index], outcomes[index]
        trace = one.request.trace
        if trace is None or not drafted:
            continue
        if not trace.has_passes[one.num_emitted]:
            passes.num_lookups += 1
            continue
        missing = one.num_known - one.num_draft_cached
        if missing <= max(rows_left, MOST_CATCH_UP):
            passes.join(missing, drafted)
            one.num_draft_cached = one.num_known + min(accepted, drafted - 1)
        else:
            outcomes[index] = (0, 0, 1)
            if rows_left > 0:
                passes.join(rows_left, 1)
                one.num_draft_cached += rows_left
        rows_left -= missing
    return outcomes, passes


def _chunks(
    running: Sequence[_Running], num_decoding: int, num_drafted: int, now: float, limits: SchedulerLimits
) -> Iterator[tuple[_Running, int]]:
    """Yield prompts and how many of their rows are in the next step."""
    room = limits.max_num_batched_tokens - num_decoding - num_drafted
    if num_decoding and not _start_together(running, now, limits):
        room = min(room, limits.most_prompt_rows(num_decoding + num_drafted))
    for one in running:
        count = min(one.request.num_prompt - one.num_computed, limits.prefill_chunk, room)
        if not one.num_emitted and count > 0 and not one.must_wait:
            yield one, count
            room -= count


def _start_together(running: Sequence[_Running], now: float, limits: SchedulerLimits) -> bool:
    """Whether prompts go first, as they came with the streams that have just begun."""
    first_token_at = min(one.first_token_at for one in running if one.num_emitted)
    prompts = [one.submitted_at for one in running if not one.num_emitted]
    return bool(prompts) and limits.start_together(prompts[0], first_token_at, now)
