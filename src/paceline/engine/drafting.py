"""What the policy is shown before a step, and its answers while the step runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from paceline.config.drafter_names import is_mixed, model_of
from paceline.drafters.interface import Drafter, HoldsMemory, ScoresText
from paceline.engine import step as stages
from paceline.engine.scheduler import PlannedSequence, Scheduler
from paceline.engine.sequence import Sequence as EngineSequence
from paceline.models.kv_memory import KVMemory
from paceline.policy.interface import (
    PLAIN,
    DraftChoice,
    DraftPolicy,
    DraftRule,
    FixedPolicy,
    SequenceView,
    StepView,
)
from paceline.records import Verification
from paceline.step_records import DraftPasses

log = logging.getLogger(__name__)


class Drafting:
    """Asks the policy once a step, and keeps its answers until the next.

    Args:
        policy: chooses draft lengths.
        drafters: by name.
        memory: the target's KV, for how full it is.
    """

    def __init__(self, policy: DraftPolicy, drafters: Mapping[str, Drafter], memory: KVMemory) -> None:
        self.policy = policy
        self._drafters = drafters
        self._holders = {name: d for name, d in drafters.items() if isinstance(d, HoldsMemory)}
        self._memory = memory
        self._scores_text = any(isinstance(holder, ScoresText) for holder in self._holders.values())
        self._choices: dict[int, DraftChoice] = {}
        self.rule: DraftRule | None = None
        """Ends drafts early, in the step at hand."""
        self.has_several = len(self._holders) > 1
        """Whether there are several draft models; a sequence is read by one of them at most."""

    @property
    def is_adaptive(self) -> bool:
        """Whether the policy chooses anything by itself."""
        return not isinstance(self.policy, FixedPolicy)

    def plan(self, scheduler: Scheduler, now: float) -> None:
        """Ask the policy for the draft lengths of all sequences that decode."""
        self._choices.clear()
        self.rule = None
        sequences = [s for s in scheduler.decoding() if s.request.speculation.enabled]
        if not sequences:
            return
        plain = [s for s in scheduler.decoding() if not s.request.speculation.enabled]
        loaded = self._loaded()
        view = StepView(
            now,
            [self._view(s, loaded) for s in (*sequences, *plain)],
            scheduler.num_prompt_rows(now),
            scheduler.num_waiting,
            self._memory.pool.num_blocks,
            self._memory.pool.num_used,
            sum(holder.num_held_blocks for holder in self._holders.values()),
            scheduler.num_preemptions,
            scheduler.is_short_of_blocks,
        )
        try:
            plan = self.policy.plan(view)
        except Exception:
            # It can only make things faster, so without its answer the step is a plain one.
            log.exception("the policy failed; a step is made without drafts")
            return
        self.rule = plan.rule
        for sequence in sequences:
            _note_unloaded(sequence, loaded)
        for sequence, choice in zip((*sequences, *plain), plan.choices, strict=True):
            self._choices[sequence.number] = choice
            sequence.drafter = choice.drafter
            if choice.draft_length and choice.drafter is not None:
                sequence.used_drafters.add(choice.drafter)
            if not choice.keeps_drafts:
                self._release(sequence, except_of=None)
            elif self.has_several and choice.drafter is not None and model_of(choice.drafter) is not None:
                self._release(sequence, except_of=model_of(choice.drafter))

    def length(self, sequence: EngineSequence) -> int:
        """Return the draft length of a sequence in this step."""
        return self._choices.get(sequence.number, PLAIN).draft_length

    def scoring(self, planned: Sequence[PlannedSequence]) -> list[PlannedSequence]:
        """Return the parts whose text a draft model is to score in this step."""
        return [
            part
            for part in planned
            if (choice := self._choices.get(part.sequence.number)) is not None and choice.scores
        ]

    def learners(self, sequence: EngineSequence) -> list[Drafter]:
        """Return the drafters that may learn from an answer: those that its request used."""
        speculation = sequence.request.speculation
        if speculation.is_adaptive:
            used = sequence.used_drafters
            # What mixes lets its parts learn; one of them, lest the suffix drafter hear it twice.
            mixes = sorted(filter(is_mixed, used))[:1]
            return [self._drafters[name] for name in mixes or sorted(used)]
        name = speculation.drafter
        is_usable = bool(speculation.enabled and name and speculation.draft_length)
        if not is_usable or sequence.fallback is not None or name not in self._loaded():
            return []
        return [self._drafters[name]]

    def take_passes(self, seconds: Mapping[str, float]) -> tuple[DraftPasses, ...]:
        """Return the forward passes of each draft model since the last call, with the seconds that it
        took."""
        rows = {name: tuple(holder.take_pass_rows()) for name, holder in self._holders.items()}
        return tuple(DraftPasses(name, each, seconds.get(name, 0.0)) for name, each in rows.items() if each)

    def _release(self, sequence: EngineSequence, except_of: str | None) -> None:
        for name, holder in self._holders.items():
            if name != except_of and (except_of is None or holder.num_cached_tokens(sequence.number)):
                stages.release(self._drafters[name], sequence.number)

    def _loaded(self) -> tuple[str, ...]:
        missing = {name for name, holder in self._holders.items() if not holder.is_loaded}
        return tuple(name for name in self._drafters if name not in missing and model_of(name) not in missing)

    def _view(self, sequence: EngineSequence, loaded: tuple[str, ...]) -> SequenceView:
        num_tokens = len(sequence.token_ids)
        held = {name: holder.num_cached_tokens(sequence.number) for name, holder in self._holders.items()}
        held_by = max(held, key=held.__getitem__, default=None)
        num_held = held[held_by] if held_by is not None else 0
        return SequenceView(
            number=sequence.number,
            route=sequence.request.route,
            speculation=sequence.request.speculation,
            num_context_tokens=num_tokens,
            num_output_tokens=sequence.num_output_tokens,
            most_drafts=sequence.max_useful_draft_length,
            drafters=loaded if sequence.fallback is None else (),
            num_draft_missing=max(1, num_tokens - num_held),
            holds_drafts=num_held > 0,
            can_score=self._can_score(sequence),
            held_by=held_by if num_held and self.has_several else None,
        )

    def _can_score(self, sequence: EngineSequence) -> bool:
        """Whether what a draft model would have drawn can be told afterwards: under coupled verification."""
        return (
            self._scores_text
            and sequence.request.speculation.verification is Verification.COUPLED
            and sequence.sampling.grammar is None
        )


def _note_unloaded(sequence: EngineSequence, loaded: Sequence[str]) -> None:
    """Let an answer say why it had no drafts where its drafter's weights are gone."""
    speculation = sequence.request.speculation
    name = speculation.drafter
    if name is not None and speculation.draft_length and name not in loaded and sequence.fallback is None:
        sequence.idle_reason = f"the weights of drafter {name} were unloaded"
