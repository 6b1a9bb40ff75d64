"""What a step's record teaches: costs, acceptance, lengths of answers, and what speculation was worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.config.drafter_names import SUFFIX, is_mixed, model_of
from paceline.policy.acceptance import Acceptance
from paceline.policy.counterfactual import ControlWindows
from paceline.policy.probing import Prober
from paceline.policy.rule import StepRule
from paceline.policy.step_costs import StepCosts
from paceline.policy.tracks import RouteTrack
from paceline.records import FinishReason, GenerationResult
from paceline.step_records import SequenceStep, StepRecord

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

    def add(self, record: StepRecord, costs: StepCosts) -> None:
        """Count one step."""
        decoding = [part for part in record.sequences if part.is_decoding]
        prompt_rows = sum(part.num_tokens for part in record.sequences if not part.is_decoding)
        context = float(sum(part.num_context_tokens for part in decoding))
        self.num_steps += 1
        self.seconds += record.duration_s
        if not decoding:  # prompts alone take what they take
            self.plain_seconds += record.duration_s
            return
        batch, num_tokens = len(decoding), sum(part.num_new_tokens for part in decoding)
        more = max(0, num_tokens - batch) / batch
        plain_s = costs.plain_s(batch, context)
        with_prompts = costs.plain_s(batch, context, prompt_rows) if prompt_rows else plain_s
        is_plain = not any(part.num_drafted for part in decoding) and record.draft_s <= 0
        self.plain_seconds += record.duration_s if is_plain else with_prompts + more * plain_s

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
        self._costs.observe(record, self._model)
        routes: dict[str, list[int]] = {}
        drafted: dict[tuple[str, str], list[SequenceStep]] = {}
        tracks: dict[str, RouteTrack] = {}
        for part in record.sequences:
            track = self._track_of(part.route)
            tracks[track.name] = track
            if not part.is_decoding:
                continue
            counts = routes.setdefault(track.name, [0, 0])
            counts[0] += 1
            counts[1] += part.num_new_tokens
            track.count_draft(part.num_drafted)
            if part.draft_length:
                drafted.setdefault((track.name, self._source(part, track, rule)), []).append(part)
            elif part.scored:
                self._acceptance.of(track.name, _scorer(part, self._model)).observe_scored(part.scored)
        for (name, source), parts in drafted.items():
            self._acceptance.of(name, source).observe(*parts)
        self.totals.add(record, self._costs)
        self._settle_probes(record, rule, prober)
        for track in tracks.values():
            track.ledger.earn(record.duration_s / len(tracks))
        if routes:
            self._compare(record, {name: (n, tokens) for name, (n, tokens) in routes.items()}, tracks)
        if self._num_steps % FADE_STEPS == 0:
            for track in tracks.values():
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
                self._acceptance.of(track.name, SUFFIX).replay.add(bins, was_cut=was_cut)
        return source

    def _settle_probes(self, record: StepRecord, rule: StepRule | None, prober: Prober) -> None:
        """Charge routes with what their probes lost: in time as measured if nobody else drafted, else as
        expected."""
        probes = [part for part in record.sequences if part.number in prober.probed]
        if not probes:
            return
        decoding = [part for part in record.sequences if part.is_decoding]
        context = float(sum(part.num_context_tokens for part in decoding))
        plain_s = self._costs.plain_s(len(decoding), context)
        has_others = any(part.draft_length and part.number not in prober.probed for part in decoding)
        has_prompts = len(decoding) < len(record.sequences)
        for part in probes:
            if has_others or has_prompts:
                cost_s = prober.cost_s(part.drafter or self._model, max(1, len(part.scored)))
            else:
                cost_s = (record.duration_s - plain_s) / len(probes)
            gained_s = part.num_accepted * plain_s / max(1, len(decoding))
            track = prober.probed[part.number]
            track.ledger.spend(cost_s - gained_s)
            source = self._acceptance.of(track.name, part.source or _scorer(part, self._model))
            prober.adapt(track, is_promising=source.calibration.is_promising)

    def _compare(
        self, record: StepRecord, routes: dict[str, tuple[int, int]], tracks: dict[str, RouteTrack]
    ) -> None:
        decoding = [part for part in record.sequences if part.is_decoding]
        has_prompts = len(decoding) < len(record.sequences)
        batch = len(decoding)
        if not has_prompts:
            context = float(sum(part.num_context_tokens for part in decoding))
            plain_s = self._costs.plain_s(batch, context)
            for name, (num_sequences, num_tokens) in routes.items():
                tracks[name].comparison.add_step(num_tokens, num_sequences, record.duration_s, plain_s)
        is_plain = not any(part.draft_length or part.scored for part in decoding)
        found = self._control.add_step(
            batch, record.duration_s, routes, is_plain=is_plain, has_prompts=has_prompts
        )
        for name, ratio in found.items():
            if name in tracks:
                tracks[name].comparison.add_window(ratio)
                tracks[name].is_checked = tracks[name].comparison.figure().is_checked

    def _drifts(self, tracks: dict[str, RouteTrack]) -> list[tuple[RouteTrack, float, float]]:
        return [
            (track, *drift)
            for track in tracks.values()
            for source in self._acceptance.known(track.name)
            if (drift := source.drift()) is not None
        ]


def _scorer(part: SequenceStep, model: str) -> str:
    """Return the source that a part without drafts asked: a draft model, if it is one of two that are
    mixed."""
    return model if part.drafter is None else model_of(part.drafter) or part.drafter
