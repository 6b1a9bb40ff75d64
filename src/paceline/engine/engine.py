"""The engine: requests in, one step at a time, chunks of answers out. Not thread-safe, by design."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping

from paceline.cache import BlockPool, KVStats
from paceline.clock import Clock, monotonic
from paceline.drafters.interface import Drafter
from paceline.drafters.scope import answer_scope
from paceline.engine import step as stages
from paceline.engine.admission import check_request
from paceline.engine.commit import commit_step, finish
from paceline.engine.emit import take_chunk
from paceline.engine.scheduler import Scheduler, SchedulerLimits, StepPlan
from paceline.engine.sequence import Sequence
from paceline.engine.totals import StepTotals
from paceline.errors import InvalidParameterError
from paceline.models.detokenizer import IncrementalDetokenizer
from paceline.models.interface import CausalModel, Vocabulary
from paceline.records import AnswerSharing, FinishReason, Request, StreamChunk
from paceline.sampling.state import SamplingState

log = logging.getLogger(__name__)


class Engine:
    """Runs many sequences over one target model, each with its own drafter and draft length.

    Args:
        model: the target.
        vocabulary: its tokens, for text and end tokens.
        drafters: by the name that requests use.
        num_blocks, block_size: size of the target's paged cache.
        context_length: most positions of one sequence; cut to what the cache can hold.
        limits: how much goes into one step.
        answer_sharing: whose earlier answers a request's drafts may come from.
    """

    def __init__(
        self,
        model: CausalModel,
        vocabulary: Vocabulary,
        drafters: Mapping[str, Drafter],
        *,
        num_blocks: int,
        block_size: int,
        context_length: int | None = None,
        limits: SchedulerLimits | None = None,
        clock: Clock = monotonic,
        answer_sharing: AnswerSharing = AnswerSharing.TENANT_AND_ROUTE,
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._drafters = dict(drafters)
        self._clock = clock
        self._answer_sharing = answer_sharing
        self._pool = BlockPool(num_blocks, block_size)
        self._kv = model.allocate_kv(num_blocks, block_size)
        self.context_length = min(context_length or model.context_length, num_blocks * block_size)
        self._scheduler = Scheduler(
            self._pool, limits or SchedulerLimits(), _fixed_draft_length, self._release_drafts
        )
        self._numbers = itertools.count()
        self._unreported: list[Sequence] = []
        self.num_steps = 0
        self.totals = StepTotals()
        """Where the time of all steps went; to be read, not changed."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report anything."""
        return self._scheduler.has_work or bool(self._unreported)

    @property
    def pool(self) -> BlockPool:
        """The target's KV blocks."""
        return self._pool

    @property
    def drafters(self) -> Mapping[str, Drafter]:
        """The drafters that requests may name."""
        return self._drafters

    @property
    def num_preemptions(self) -> int:
        """Times that a sequence gave its blocks to an older one."""
        return self._scheduler.num_preemptions

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
            pool=self._pool,
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
            answer_scope=answer_scope(request, self._answer_sharing),
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
        begin = self._clock()
        plan = self._scheduler.plan()
        proposals, draft_s = self._draft(plan)
        outcomes, verify_s = self._verify(plan, proposals)
        self._commit(outcomes, draft_s, verify_s)
        chunks = self._emit(plan)
        self.totals.add(self._clock() - begin, draft_s, verify_s)
        return chunks

    def kv_stats(self) -> KVStats:
        """Return who holds the KV memory now."""
        pool = self._pool
        return KVStats(
            num_blocks=pool.num_blocks,
            num_used=pool.num_used,
            num_cached=0,
            num_held_by_drafts=0,
            peak_num_used=pool.peak_num_used,
            num_prefix_queries=0,
            num_prefix_hits=0,
            num_draft_prefix_queries=0,
            num_draft_prefix_hits=0,
        )

    def clear_prefix_cache(self) -> None:
        """Begin counting anew; nothing of finished requests is kept yet."""
        self._pool.reset_peak()

    def forget_answers(self) -> None:
        """Let drafters forget what earlier answers taught them, so that measurements begin alike."""
        for drafter in self._drafters.values():
            drafter.forget_answers()

    def _draft(self, plan: StepPlan) -> tuple[stages.Proposals, float]:
        begin = self._clock()
        proposals = stages.draft(plan.drafting, self._drafters)
        return proposals, self._clock() - begin

    def _verify(self, plan: StepPlan, proposals: stages.Proposals) -> tuple[list[stages.Outcome], float]:
        if not plan.planned:
            return [], 0.0
        begin = self._clock()
        logits = stages.forward(plan.planned, proposals, self._model, self._kv)
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
                self._learn(sequence)
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

    def _learn(self, sequence: Sequence) -> None:
        """Give an answer to the drafter that its request used; without drafts nothing is learned."""
        if _fixed_draft_length(sequence):
            drafter = self._drafters[sequence.request.speculation.drafter or ""]
            drafter.learn(sequence.answer_scope, sequence.output_token_ids)

    def _release_drafts(self, sequence: Sequence) -> None:
        for drafter in self._drafters.values():
            drafter.release(sequence.number)


def _fixed_draft_length(sequence: Sequence) -> int:
    """The simplest policy: what the request says."""
    speculation = sequence.request.speculation
    return speculation.draft_length if speculation.enabled and speculation.drafter else 0
