"""What a step's record teaches: costs, acceptance, lengths of answers, and what speculation was worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.config.drafter_names import SUFFIX, is_mixed, model_of
from paceline.policy.acceptance import Acceptance
from paceline.policy.counterfactual import ControlWindows
from paceline.policy.probing import Prober
from paceline.policy.replay import Draft
from paceline.policy.rule import StepRule
from paceline.policy.step_costs import StepCosts
from paceline.policy.tally import Tally, tally_of
from paceline.policy.tracks import RouteTrack
from paceline.records import FinishReason, GenerationResult
from paceline.step_records import SequenceStep, StepRecord

MOST_LEARNED = 8
"""Drafting sequences whose drafts are learned from in one step, in turns where there are more: many teach
soon enough even so, and what a step has for learning does not grow with them."""
DRIFT_STEPS = 32
FADE_STEPS = 1024


@dataclass(slots=True)
class ServedTotals:
    """Time of all steps, and what it would have been without drafts."""

    seconds: float = 0.0
    plain_seconds: float = 0.0
    """Estimated from step costs: each step without its drafts, and a part of another one for each token
    more."""
    num_steps: int = 0

    def add(self, tally: Tally, duration_s: float, plain_s: float, with_prompts_s: float) -> None:
        """Count one step.

        Args:
            tally: its sums.
            duration_s: what it took.
            plain_s: what its decoding sequences would have taken without drafts, an estimate.
            with_prompts_s: the same with the prompts beside them.
        """
        self.num_steps += 1
        self.seconds += duration_s
        if not tally.num_decoding or not tally.has_draft_work:  # takes what it takes
            self.plain_seconds += duration_s
            return
        more = max(0, tally.num_tokens - tally.num_decoding) / tally.num_decoding
        self.plain_seconds += with_prompts_s + more * plain_s

    def copy(self) -> ServedTotals:
        """Return the sums as they are now."""
        return replace(self)


class Learner:
    """Takes records in, on behalf of the policy."""

    def __init__(
        self,
        costs: StepCosts,
        acceptance: Acceptance,
        control: ControlWindows,
        track_of: Callable[[str | None], RouteTrack],
        model: str,
    ) -> None:
        self._costs = costs
        self._acceptance = acceptance
        self._control = control
        self._track_of = track_of
        self._model = model
        self._num_steps = 0
        self.totals = ServedTotals()

    def on_step(
        self, record: StepRecord, rule: StepRule | None, prober: Prober
    ) -> list[tuple[RouteTrack, float, float]]:
        """Learn from a step.

        Returns:
            Routes whose acceptance has just left its band, with its slow and its fast mean.
        """
        self._num_steps += 1
        costs, acceptance, duration_s = self._costs, self._acceptance, record.duration_s
        tally = tally_of(record, self._track_of)
        if record.sequences:
            costs.observe_sums(
                record, self._model, rows=tally.num_rows, context=tally.context + tally.prompt_context,
                num_asked=tally.num_asked, has_prompts=tally.has_prompts,
            )  # fmt: skip
        stride = -(-tally.num_asked // MOST_LEARNED) or 1
        for share in tally.shares:
            name = share.track.name
            drafted: dict[str, list[SequenceStep]] = {}
            for part in share.drafting[self._num_steps % stride :: stride]:
                # Of a match that was taken there is no more to be said.
                source = SUFFIX if part.source == SUFFIX else self._source(part, share.track, rule)
                drafted.setdefault(source, []).append(part)
            for source, parts in drafted.items():
                acceptance.of(name, source).observe(*parts)
            for part in share.scored:
                acceptance.of(name, _scorer(part, self._model)).observe_scored(part.scored)
        batch, context = tally.num_decoding, float(tally.context)
        plain_s = with_prompts_s = 0.0
        if batch:
            plain_s = with_prompts_s = costs.plain_s(batch, context)
            if tally.num_prompt_rows:
                with_prompts_s = costs.plain_s(batch, context, tally.num_prompt_rows)
        self.totals.add(tally, duration_s, plain_s, with_prompts_s)
        if prober.probed:
            self._settle_probes(record, tally, plain_s, prober)
        for share in tally.shares:
            share.track.ledger.earn(duration_s / len(tally.shares))
        if batch:
            self._compare(tally, duration_s, plain_s)
        tracks = [share.track for share in tally.shares]
        if self._num_steps % FADE_STEPS == 0:
            for track in tracks:
                track.fade()
        return self._drifts(tracks) if self._num_steps % DRIFT_STEPS == 0 else []

    def on_finish(self, result: GenerationResult) -> None:
        """Learn the length of an answer that came to its own end, or to its cap."""
        if result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._track_of(result.route).lengths.add(result.usage.completion_tokens)

    def _source(self, part: SequenceStep, track: RouteTrack, rule: StepRule | None) -> str:
        """Return whose drafts they were; where the draft model was asked, note the match that was left."""
        source = part.source or part.drafter or self._model
        if part.drafter is not None and is_mixed(part.drafter):
            if source == part.drafter:  # neither of the two proposed anything
                source = model_of(part.drafter) or self._model
            if source != SUFFIX:
                passed_over = {} if rule is None else rule.passed_over
                bins = passed_over.get(part.number, [])
                was_cut = bool(bins) and len(bins) >= part.draft_length
                self._acceptance.of(track.name, SUFFIX).replay.add(Draft(bins, was_cut))
        return source

    def _settle_probes(self, record: StepRecord, tally: Tally, plain_s: float, prober: Prober) -> None:
        """Charge routes with what their probes lost: in time as measured if nobody else drafted, else as
        expected."""
        probes = [part for part in record.sequences if part.number in prober.probed]
        num_drafting = sum(len(share.drafting) for share in tally.shares)
        has_others = num_drafting > sum(part.draft_length > 0 for part in probes)
        for part in probes:
            if has_others or tally.has_prompts:
                cost_s = prober.cost_s(part.drafter or self._model, max(1, len(part.scored)))
            else:
                cost_s = (record.duration_s - plain_s) / len(probes)
            gained_s = part.num_accepted * plain_s / max(1, tally.num_decoding)
            track = prober.probed[part.number]
            track.ledger.spend(cost_s - gained_s)
            source = self._acceptance.of(track.name, part.source or _scorer(part, self._model))
            prober.adapt(track, is_promising=source.calibration.is_promising)

    def _compare(self, tally: Tally, duration_s: float, plain_s: float) -> None:
        decoding = [share for share in tally.shares if share.num_sequences]
        if not tally.has_prompts:
            for share in decoding:
                share.track.comparison.add_step(share.num_tokens, share.num_sequences, duration_s, plain_s)
        found = self._control.add_step(
            tally.num_decoding,
            duration_s,
            {share.track.name: (share.num_sequences, share.num_tokens) for share in decoding},
            is_plain=not tally.is_asking,
            has_prompts=tally.has_prompts,
        )
        tracks = {share.track.name: share.track for share in decoding} if found else {}
        for name, ratio in found.items():
            if name in tracks:
                tracks[name].comparison.add_window(ratio)
                tracks[name].is_checked = tracks[name].comparison.figure().is_checked

    def _drifts(self, tracks: Sequence[RouteTrack]) -> list[tuple[RouteTrack, float, float]]:
        return [
            (track, *drift)
            for track in tracks
            for source in self._acceptance.known(track.name)
            if (drift := source.drift()) is not None
        ]


def _scorer(part: SequenceStep, model: str) -> str:
    """Return the source that a part without drafts asked: a draft model, if it is one of two that are
    mixed."""
    return model if part.drafter is None else model_of(part.drafter) or part.drafter
