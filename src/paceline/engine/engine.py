"""The engine: requests in, one step at a time, chunks of answers out. Not thread-safe, by design."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping

from paceline.cache import BlockPool, KVStats
from paceline.clock import Clock, monotonic
from paceline.drafters.interface import Drafter, HoldsMemory
from paceline.engine import step as stages
from paceline.engine.admission import check_request
from paceline.engine.commit import commit_step, finish
from paceline.engine.emit import take_chunk
from paceline.engine.room import Room
from paceline.engine.scheduler import Scheduler, SchedulerLimits, StepPlan
from paceline.engine.sequence import Sequence
from paceline.errors import ConfigError, InvalidParameterError
from paceline.models.detokenizer import IncrementalDetokenizer
from paceline.models.interface import CausalModel, Vocabulary
from paceline.models.kv_memory import KVMemory
from paceline.records import FinishReason, Request, StreamChunk
from paceline.sampling.state import SamplingState

log = logging.getLogger(__name__)


class Engine:
    """Runs many sequences over one target model, each with its own drafter and draft length.

    Args:
        model: the target.
        vocabulary: its tokens, for text and end tokens.
        drafters: by the name that requests use.
        memory: the target's KV blocks.
        context_length: most positions of one sequence; cut to what the cache can hold.
        limits: how much goes into one step.
    """

    def __init__(
        self,
        model: CausalModel,
        vocabulary: Vocabulary,
        drafters: Mapping[str, Drafter],
        *,
        memory: KVMemory,
        context_length: int | None = None,
        limits: SchedulerLimits | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._drafters = dict(drafters)
        self._clock = clock
        self._memory = memory
        self.context_length = min(context_length or model.context_length, memory.num_positions)
        self._holders = {name: d for name, d in self._drafters.items() if isinstance(d, HoldsMemory)}
        self._scheduler = Scheduler(
            Room(memory, tuple(self._holders.values())),
            limits or SchedulerLimits(),
            self._draft_length,
            self._release_drafts,
        )
        self._numbers = itertools.count()
        self._unreported: list[Sequence] = []
        self.num_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report anything."""
        return self._scheduler.has_work or bool(self._unreported)

    @property
    def pool(self) -> BlockPool:
        """The pool of the target's KV blocks, and of what drafts share it."""
        return self._memory.pool

    @property
    def drafters(self) -> Mapping[str, Drafter]:
        """The drafters that requests may name."""
        return self._drafters

    @property
    def num_preemptions(self) -> int:
        """Times that a sequence gave its blocks to an older one."""
        return self._scheduler.num_preemptions

    def kv_stats(self) -> KVStats:
        """Return who holds the KV memory now, and what reuse has saved so far."""
        pool = self.pool
        return KVStats(
            num_blocks=pool.num_blocks,
            num_used=pool.num_used,
            num_cached=pool.num_cached,
            num_held_by_drafts=sum(holder.num_held_blocks for holder in self._holders.values()),
            peak_num_used=pool.peak_num_used,
            num_prefix_queries=self._memory.num_prefix_queries,
            num_prefix_hits=self._memory.num_prefix_hits,
            num_draft_prefix_queries=sum(holder.num_prefix_queries for holder in self._holders.values()),
            num_draft_prefix_hits=sum(holder.num_prefix_hits for holder in self._holders.values()),
        )

    def clear_prefix_cache(self) -> None:
        """Forget what finished requests computed, so that measurements begin alike; peaks begin anew."""
        self.pool.forget()
        for holder in self._holders.values():
            holder.forget_prefixes()
        self.pool.reset_peak()

    def unload_drafter(self, name: str) -> None:
        """Give back a drafter's weights and blocks; requests that name it decode without drafts meanwhile.

        Raises:
            ConfigError: there is no drafter of that name that holds any, or it cannot be loaded again.
        """
        self._holder(name).unload()

    def load_drafter(self, name: str) -> None:
        """Load a drafter's weights again, after `unload_drafter`."""
        self._holder(name).load()

    def _holder(self, name: str) -> HoldsMemory:
        if name not in self._holders:
            raise ConfigError(
                given=f"drafter {name!r} to load or unload",
                expected="one that has weights: " + (", ".join(map(repr, self._holders)) or "there is none"),
                remedy="Name a drafter with a draft model",
            )
        return self._holders[name]

    def submit(self, request: Request) -> None:
        """Queue a request; raises a RequestError if it can never run, and then nothing is queued."""
        check_request(request, self.context_length, self._model.vocab_size, self._drafters)
        if any(s.request.id == request.id for s in itertools.chain(self._scheduler, self._unreported)):
            raise InvalidParameterError(
                given=f"request id {request.id!r}, which is still running",
                expected="an id that no unfinished request has",
                remedy="Choose another id",
            )
        params = request.sampling
        end_token_ids = frozenset() if params.ignore_eos else self._vocabulary.eos_ids
        room = self.context_length
        if params.max_tokens is not None:
            room = min(room, len(request.prompt_token_ids) + params.max_tokens)
        sequence = Sequence(
            next(self._numbers),
            request,
            table=self._memory.new_table(),
            sampling=SamplingState(
                params,
                request.seed,
                request.prompt_token_ids,
                end_token_ids,
                vocab_size=self._model.vocab_size,
                num_real_tokens=self._vocabulary.num_real_tokens,
            ),
            detokenizer=IncrementalDetokenizer(self._vocabulary.token_bytes, params.stop, params.min_tokens),
            max_total_tokens=room,
            submitted_at=self._clock(),
        )
        self._scheduler.add(sequence)

    def abort(self, request_id: str, *, is_reported: bool = True) -> bool:
        """End a request now, wherever it stands.

        Args:
            request_id: the request.
            is_reported: whether its last chunk comes with the next step; if not, nothing more is said of it.

        Returns:
            Whether there was such a request.
        """
        for sequence in self._scheduler:
            if sequence.request.id == request_id:
                self._end(sequence, FinishReason.ABORT)
                if not is_reported:
                    self._unreported.remove(sequence)
                return True
        return False

    def step(self) -> list[StreamChunk]:
        """Plan, draft, verify, commit, emit."""
        plan = self._scheduler.plan(self._clock())
        proposals, draft_s = self._draft(plan)
        outcomes, verify_s = self._verify(plan, proposals)
        self._commit(outcomes, draft_s, verify_s)
        return self._emit(plan)

    def _draft(self, plan: StepPlan) -> tuple[stages.Proposals, float]:
        begin = self._clock()
        proposals = stages.draft(plan.drafting, self._drafters)
        return proposals, self._clock() - begin

    def _verify(self, plan: StepPlan, proposals: stages.Proposals) -> tuple[list[stages.Outcome], float]:
        if not plan.planned:
            return [], 0.0
        begin = self._clock()
        logits = stages.forward(plan.planned, proposals, self._model, self._memory.store)
        verify_s = self._clock() - begin
        self.num_steps += 1
        return stages.judge(plan.planned, proposals, logits), verify_s

    def _commit(self, outcomes: list[stages.Outcome], draft_s: float, verify_s: float) -> None:
        now = self._clock()
        for outcome in outcomes:
            sequence = outcome.part.sequence
            if sequence.num_output_tokens:
                sequence.draft_s += draft_s if outcome.part.draft_length else 0.0
                sequence.verify_s += verify_s
            if outcome.error is not None:
                self._end(sequence, FinishReason.ERROR, outcome.error)
                continue
            commit_step(outcome.part, outcome.verdict, outcome.num_drafted, now)
            if sequence.finish_reason is not None:
                self._scheduler.remove(sequence)
                self._release_drafts(sequence)

    def _emit(self, plan: StepPlan) -> list[StreamChunk]:
        ended, self._unreported = self._unreported, []
        active = [part.sequence for part in plan.planned if part.sequence not in ended]
        return [chunk for s in [*ended, *active] if (chunk := take_chunk(s)) is not None]

    def _end(self, sequence: Sequence, reason: FinishReason, error: Exception | None = None) -> None:
        self._scheduler.remove(sequence)
        finish(sequence, reason, error)
        self._release_drafts(sequence)
        self._unreported.append(sequence)

    def _release_drafts(self, sequence: Sequence) -> None:
        for drafter in self._drafters.values():
            drafter.release(sequence.number)

    def _draft_length(self, sequence: Sequence) -> int:
        """The simplest policy: what the request says, while its drafter is there."""
        speculation = sequence.request.speculation
        if not speculation.enabled or speculation.drafter is None:
            return 0
        holder = self._holders.get(speculation.drafter)
        return speculation.draft_length if holder is None or holder.is_loaded else 0
