"""Closed-loop load on one engine: so many clients, each with one request at a time, until all are answered.

A cell is one set of requests at one concurrency in one mode (speculation off, or on with a drafter and a
draft length). Cells begin alike: no prefix of an earlier one is found again, no answer of it drafted from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from paceline.clock import Clock, monotonic
from paceline.engine.engine import Engine
from paceline.measure.load_cell import CellCounts, LoadCell
from paceline.measure.load_mode import Mode
from paceline.records import GenerationResult, Request, SamplingParams, StreamChunk

MIXED = "mixed"
"""The name of the group that has the requests of all routes."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A request that is ready to be submitted, any number of times."""

    id: str
    route: str | None
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    tenant: str | None = None
    """Whose earlier answers drafts may come from."""

    def submitted(self, mode: Mode) -> Request:
        """Return it as an engine takes it."""
        return Request(
            id=self.id,
            prompt_token_ids=self.prompt_token_ids,
            sampling=self.sampling,
            speculation=mode.speculation,
            seed=self.seed,
            route=self.route,
            tenant=self.tenant,
        )


@dataclass(slots=True)
class _Delivery:
    """What one client has received of one answer."""

    submitted_at: float
    times: list[float] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    """Tokens that came at each of `times`."""


class LoadLoop:
    """Runs cells on an engine, one after another.

    Args:
        engine: with room for the highest concurrency; nothing else may use it.
        on_answer: called whenever a request has ended, to show progress.
        clock: read after each step.
    """

    def __init__(
        self, engine: Engine, on_answer: Callable[[], None] = lambda: None, clock: Clock = monotonic
    ) -> None:
        self._engine = engine
        self._on_answer = on_answer
        self._clock = clock

    def warm_up(self, request: LoadRequest, modes: Sequence[Mode], num_tokens: int) -> None:
        """Answer one request in a few tokens in each mode, lest a cell pay for what is only done once."""
        sampling = request.sampling.model_copy(update={"max_tokens": num_tokens})
        for mode in modes:
            self._submit(replace(request, sampling=sampling), mode)
            while self._engine.has_work:
                self._engine.step()

    def cells(
        self,
        group: str | None,
        requests: Sequence[LoadRequest],
        concurrencies: Sequence[int],
        modes: Sequence[Mode],
    ) -> Iterator[LoadCell]:
        """Run all cells of a group of requests; those of one concurrency follow one another.

        Yields:
            A cell as soon as it is done. It is compared with the cell without speculation at its own
            concurrency, which therefore runs first where there is one.
        """
        for concurrency in concurrencies:
            off: dict[str, GenerationResult] | None = None
            for mode in sorted(modes, key=lambda mode: not mode.is_off):
                results, counts = self.run(requests, concurrency, mode)
                off = results if mode.is_off else off
                yield LoadCell.of(group, concurrency, mode.label, list(results.values()), counts, off)

    def run(
        self,
        requests: Sequence[LoadRequest],
        concurrency: int,
        mode: Mode,
        prepare: Callable[[], None] = lambda: None,
        *,
        keeps_answers: bool = False,
    ) -> tuple[dict[str, GenerationResult], CellCounts]:
        """Answer all requests once in one mode; return the answers in their order, and what was counted.

        No prompt's KV of an earlier run is found again, neither the target's nor a draft model's.

        Args:
            requests: with different ids.
            concurrency: clients.
            mode: of all requests.
            prepare: called when drafters have forgotten everything, to teach them what they should know.
            keeps_answers: whether they forget nothing; answers of other tenants are kept apart then.
        """
        engine = self._engine
        engine.clear_prefix_cache()
        if not keeps_answers:
            engine.forget_answers()
        prepare()
        before, kv_before = engine.totals.copy(), engine.kv_stats()
        preemptions_before = engine.num_preemptions
        waiting = iter(requests)
        deliveries: dict[str, _Delivery] = {}
        results: dict[str, GenerationResult] = {}
        begin = self._clock()
        for _ in range(concurrency):
            self._submit_next(waiting, mode, deliveries)
        while engine.has_work:
            chunks = engine.step()
            now = self._clock()
            for chunk in chunks:
                self._take(chunk, now, deliveries, results)
                if chunk.is_last:
                    self._submit_next(waiting, mode, deliveries)
        wall_s = self._clock() - begin
        kv = engine.kv_stats()
        counts = CellCounts(
            wall_s=wall_s,
            ttft_s=tuple(d.times[0] - d.submitted_at for d in deliveries.values() if d.times),
            token_gaps_s=tuple(gap for d in deliveries.values() for gap in _token_gaps(d)),
            chunk_gaps_s=tuple(gap for d in deliveries.values() for gap in _chunk_gaps(d)),
            steps=engine.totals - before,
            num_preemptions=engine.num_preemptions - preemptions_before,
            num_prefix_queries=kv.num_prefix_queries - kv_before.num_prefix_queries,
            num_prefix_hits=kv.num_prefix_hits - kv_before.num_prefix_hits,
            peak_kv_blocks=kv.peak_num_used,
            num_kv_blocks=kv.num_blocks,
        )
        return {request.id: results[request.id] for request in requests}, counts

    def _submit_next(
        self, waiting: Iterator[LoadRequest], mode: Mode, deliveries: dict[str, _Delivery]
    ) -> None:
        request = next(waiting, None)
        if request is None:
            return
        deliveries[request.id] = _Delivery(self._clock())
        self._submit(request, mode)

    def _submit(self, request: LoadRequest, mode: Mode) -> None:
        self._engine.submit(request.submitted(mode))

    def _take(
        self,
        chunk: StreamChunk,
        now: float,
        deliveries: dict[str, _Delivery],
        results: dict[str, GenerationResult],
    ) -> None:
        if chunk.token_ids:
            deliveries[chunk.request_id].times.append(now)
            deliveries[chunk.request_id].num_tokens.append(len(chunk.token_ids))
        if chunk.result is not None:
            results[chunk.request_id] = chunk.result
            self._on_answer()


def _chunk_gaps(delivery: _Delivery) -> Iterator[float]:
    """Yield the seconds between deliveries."""
    for earlier, later in zip(delivery.times, delivery.times[1:], strict=False):
        yield later - earlier


def _token_gaps(delivery: _Delivery) -> Iterator[float]:
    """Yield the seconds between tokens: those that come together share the time since the last delivery."""
    for gap, count in zip(_chunk_gaps(delivery), delivery.num_tokens[1:], strict=True):
        for _ in range(count):
            yield gap / count
