"""The engine: requests in, one step at a time, chunks of answers out. Not thread-safe, by design."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping

from paceline.cache import BlockPool, KVStats
from paceline.clock import Clock, monotonic
from paceline.drafters.interface import Drafter
from paceline.engine import step as stages
from paceline.engine.commit import commit_step, finish
from paceline.engine.drafting import Drafting
from paceline.engine.emit import take_chunk
from paceline.engine.holders import Holders
from paceline.engine.idle import IdleScoring
from paceline.engine.intake import Intake
from paceline.engine.observer import Observers
from paceline.engine.room import Room
from paceline.engine.scheduler import Scheduler, SchedulerLimits, StepPlan
from paceline.engine.sequence import Sequence
from paceline.engine.stalls import find_stalls
from paceline.engine.totals import StepTotals
from paceline.engine.trace import DRAFT, VERIFY, StepTrace
from paceline.errors import InvalidParameterError, PacelineError
from paceline.models.interface import CausalModel, Vocabulary
from paceline.models.kv_memory import KVMemory
from paceline.policy.interface import DraftPolicy, FixedPolicy
from paceline.records import AnswerSharing, FinishReason, Request, StreamChunk
from paceline.step_records import Stall

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
        answer_sharing: whose earlier answers a request's drafts may come from.
        policy: chooses draft lengths; none takes what requests say.
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
        answer_sharing: AnswerSharing = AnswerSharing.TENANT_AND_ROUTE,
        policy: DraftPolicy | None = None,
    ) -> None:
        self._model = model
        self._drafters = dict(drafters)
        self._clock = clock
        self._memory = memory
        self.context_length = min(context_length or model.context_length, memory.num_positions)
        self._holders = Holders(self._drafters)
        self._drafting = Drafting(policy or FixedPolicy(), self._drafters, memory)
        self._idle = IdleScoring(self._drafting.policy, self._drafters)
        self._scheduler = Scheduler(
            Room(memory, tuple(self._holders)),
            limits or SchedulerLimits(),
            self._drafting.length,
            self._release_drafts,
        )
        self._intake = Intake(
            vocabulary,
            model.vocab_size,
            self._drafters,
            memory,
            context_length=self.context_length,
            clock=clock,
            answer_sharing=answer_sharing,
        )
        self._unreported: list[Sequence] = []
        self.max_num_seqs = (limits or SchedulerLimits()).max_num_seqs
        self.num_steps = 0
        self.observers = Observers()
        """Who is told of each step."""
        if self._drafting.is_adaptive:
            self.observers.add(self._drafting.policy)
        self.totals = StepTotals()
        """Where the time of all steps went; to be read, not changed."""

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
    def policy(self) -> DraftPolicy:
        """What chooses draft lengths."""
        return self._drafting.policy

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Sequences that wait."""
        return self._scheduler.num_waiting

    @property
    def num_preemptions(self) -> int:
        """Times that a sequence gave its blocks to an older one."""
        return self._scheduler.num_preemptions

    def kv_stats(self) -> KVStats:
        """Return who holds the KV memory now, and what reuse has saved so far."""
        return self._holders.kv_stats(self._memory)

    def clear_prefix_cache(self) -> None:
        """Forget what finished requests computed, so that measurements begin alike; peaks begin anew."""
        self.pool.forget()
        for holder in self._holders:
            holder.forget_prefixes()
        self.pool.reset_peak()

    def unload_drafter(self, name: str) -> None:
        """Give back a drafter's weights and blocks; requests that name it decode without drafts meanwhile.

        Raises:
            ConfigError: there is no drafter of that name that holds any, or it cannot be loaded again.
        """
        self._holders.get(name).unload()

    def load_drafter(self, name: str) -> None:
        """Load a drafter's weights again, after `unload_drafter`."""
        self._holders.get(name).load()

    def prepare(self, request: Request) -> tuple[Sequence, ...]:
        """Check a request and return its n choices, ready for `add`; nothing is queued. Safe in any thread.

        Raises:
            RequestError: it can never run.
        """
        self._drafting.policy.check(request.route, request.speculation)
        return self._intake.prepare(request)

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue the choices of one request, all or none.

        Raises:
            InvalidParameterError: an unfinished request has the same id.
        """
        new = list(sequences)
        request_ids = {sequence.request.id for sequence in new}
        for running in itertools.chain(self._scheduler, self._unreported):
            if running.request.id in request_ids:
                raise InvalidParameterError(
                    given=f"request id {running.request.id!r}, which is still running",
                    expected="an id that no unfinished request has",
                    remedy="Choose another id",
                )
        for sequence in new:
            self._scheduler.add(sequence)

    def submit(self, request: Request) -> None:
        """Queue one request; raises a RequestError if it can never run, and then nothing is queued."""
        self.add(self.prepare(request))

    def abort(self, request_id: str, *, is_reported: bool = True) -> bool:
        """End a request with all its choices now, wherever they stand.

        Args:
            request_id: the request.
            is_reported: whether the last chunks come with the next step; if not, only observers hear of it.

        Returns:
            Whether there was such a request.
        """
        found = [sequence for sequence in self._scheduler if sequence.request.id == request_id]
        for sequence in found:
            self._end(sequence, FinishReason.ABORT)
        if not is_reported:
            self._drop_report(request_id)
        return bool(found)

    def _drop_report(self, request_id: str) -> None:
        """Tell observers, who count every answer, of those that ended and that nobody waits for any more."""
        dropped = [s for s in self._unreported if s.request.id == request_id]
        self._unreported = [s for s in self._unreported if s.request.id != request_id]
        for chunk in map(take_chunk, dropped):
            if chunk is not None and chunk.result is not None:
                self.observers.tell_result(chunk.result)

    def fail_all(self, error: Exception) -> None:
        """End every request with an error: what is left to do when a step could not even be planned."""
        for sequence in list(self._scheduler):
            self._end(sequence, FinishReason.ERROR, stages.failed(error))

    def fail(self, request_id: str, error: PacelineError) -> None:
        """End a request with all its choices, with an error; their last chunks come with the next step."""
        for sequence in [s for s in self._scheduler if s.request.id == request_id]:
            self._end(sequence, FinishReason.ERROR, error)

    def stalled(self, after_s: float) -> list[Stall]:
        """Return the sequences for which nothing was computed for `after_s` seconds or longer."""
        return find_stalls(self._scheduler, self._clock(), after_s)

    def step(self) -> list[StreamChunk]:
        """Plan, draft, verify, commit, emit."""
        trace = StepTrace(self._clock)
        trace.mark()
        self._drafting.plan(self._scheduler, trace.marks[0])
        plan = self._scheduler.plan(trace.marks[0])
        if self.observers:
            trace.begin(plan)
        trace.mark()
        drafts = self._draft(plan)
        trace.mark()
        logits = self._verify(plan, drafts.proposals)
        trace.mark()
        self._commit(stages.judge(plan.planned, drafts.proposals, logits), trace)
        chunks = self._emit(plan)
        trace.mark()
        self.totals.add(trace.marks[-1] - trace.marks[0], trace.seconds(DRAFT), trace.seconds(VERIFY))
        trace.tell(self.observers, self, drafts, self._drafting.take_passes(drafts.seconds), chunks)
        return chunks

    def work_idle(self) -> bool:
        """Do a little that serves nobody now, where the engine has no work; False if there is nothing."""
        return not self.has_work and self._idle.work()

    def forget_answers(self) -> None:
        """Let drafters forget what earlier answers taught them, so that measurements begin alike."""
        for drafter in self._drafters.values():
            drafter.forget_answers()

    def _draft(self, plan: StepPlan) -> stages.Drafts:
        scoring = self._drafting.scoring(plan.planned)
        clock = self._clock if self._drafting.has_several else None
        drafts = stages.draft(plan.drafting, self._drafters, self._drafting.rule, scoring, clock)
        for part in plan.drafting:
            part.sequence.fallback = drafts.faults.get(part.sequence.number)
        return drafts

    def _verify(self, plan: StepPlan, proposals: stages.Proposals) -> stages.Rows:
        if not plan.planned:
            return stages.NO_ROWS
        self.num_steps += 1
        try:
            return stages.forward(plan.planned, proposals, self._model, self._memory.store)
        except Exception as error:
            log.exception("the target failed in a step of %d sequences", len(plan.planned))
            return stages.failed(error)

    def _commit(self, outcomes: list[stages.Outcome], trace: StepTrace) -> None:
        now = trace.marks[-1]
        for outcome in outcomes:
            sequence = outcome.part.sequence
            if sequence.num_output_tokens:
                sequence.draft_s += trace.seconds(DRAFT) if outcome.part.draft_length else 0.0
                sequence.verify_s += trace.seconds(VERIFY)
            if outcome.error is not None:
                self._end(sequence, FinishReason.ERROR, outcome.error)
                continue
            try:
                commit_step(outcome.part, outcome.verdict, outcome.num_drafted, now, outcome.prompt_logprobs)
            except Exception as error:
                log.exception("a sequence could not be taken on; the others go on")
                self._end(sequence, FinishReason.ERROR, stages.failed(error))
                continue
            if sequence.finish_reason is not None:
                self._scheduler.remove(sequence)
                self._learn(sequence)
                self._release_drafts(sequence)
                self._idle.keep(sequence)

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
        """Give an answer to the drafters that its request used; without drafts nothing is learned."""
        for drafter in self._drafting.learners(sequence):
            stages.learn(drafter, sequence.answer_scope, sequence.output_token_ids)

    def _release_drafts(self, sequence: Sequence) -> None:
        for drafter in self._drafters.values():
            stages.release(drafter, sequence.number)
