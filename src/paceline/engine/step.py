"""Draft and verify: the two stages of a step that compute."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from paceline.clock import Clock
from paceline.config.drafter_names import MODEL, model_of
from paceline.drafters.interface import Drafter, DraftProposal, DraftRequest
from paceline.engine.scheduler import PlannedSequence
from paceline.engine.scoring import score_text
from paceline.engine.totals import timed
from paceline.errors import GenerationError, PacelineError, StepError
from paceline.models.interface import CausalModel, KVStore, SequenceSlice
from paceline.policy.interface import DraftRule
from paceline.records import PositionLogprobs
from paceline.sampling.logprobs import position_logprobs
from paceline.sampling.sampler import verify
from paceline.sampling.verdict import Verdict

log = logging.getLogger(__name__)

Rows = np.ndarray | StepError
"""Logits [rows that need them, vocab], or why there are none."""
NO_ROWS = np.empty((0, 0), dtype=np.float32)
Proposals = Mapping[int, DraftProposal]
"""Proposals by sequence number."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """What came out of drafting, by sequence number."""

    proposals: Proposals
    faults: Mapping[int, str]
    """Why a drafter failed on a sequence, which goes on without it."""
    confidences: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Of all drafts that were made, those that are not verified included."""
    scored: Mapping[int, tuple[tuple[float, bool], ...]] = field(default_factory=dict)
    """What a draft model said of text that stands already."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By draft model, where each was timed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the target said of one part of a step."""

    part: PlannedSequence
    verdict: Verdict | None = None
    """None for a prefill chunk that does not reach the last known token."""
    num_drafted: int = 0
    prompt_logprobs: tuple[PositionLogprobs, ...] = ()
    """Of the next tokens of the prompt, where they were asked for."""
    error: PacelineError | None = None
    """Why this one sequence cannot go on."""


def draft(
    drafting: Sequence[PlannedSequence],
    drafters: Mapping[str, Drafter],
    rule: DraftRule | None = None,
    scoring: Sequence[PlannedSequence] = (),
    clock: Clock | None = None,
) -> Drafts:
    """Ask each drafter once for all sequences that use it, and keep the drafts that are worth verifying.

    With a clock, each draft model is timed. A drafter that raises, or gives no proper answer, is asked for
    each sequence alone, so that one sequence cannot cost the others their drafts."""
    by_drafter: dict[str, list[PlannedSequence]] = {}
    for part in drafting:
        by_drafter.setdefault(part.sequence.drafter or "", []).append(part)
    proposals: dict[int, DraftProposal] = {}
    faults: dict[int, str] = {}
    seconds: dict[str, float] = {}
    for name, parts in by_drafter.items():
        with timed(seconds, model_of(name), clock):
            _ask(drafters[name], name, parts, proposals, faults, rule)
    confidences = {number: proposal.confidences for number, proposal in proposals.items()}
    if rule is not None:
        _cut(drafting, proposals, rule)
    scored: dict[int, tuple[tuple[float, bool], ...]] = {}
    for part in scoring:
        scorer = model_of(part.sequence.drafter or MODEL) or MODEL
        with timed(seconds, scorer, clock):
            scored[part.sequence.number] = score_text(part, drafters[scorer])
    return Drafts(proposals, faults, confidences, scored, seconds)


def _cut(drafting: Sequence[PlannedSequence], proposals: dict[int, DraftProposal], rule: DraftRule) -> None:
    """Drop drafts that are not worth a row of the target."""
    asked = [
        (
            number,
            proposal.source or part.sequence.drafter or "",
            proposal.confidences,
            not proposal.sampled_from,
        )
        for part in drafting
        if (proposal := proposals.get(number := part.sequence.number)) is not None and proposal.token_ids
    ]
    try:
        lengths = rule.lengths(asked)
    except Exception:
        log.exception("the policy's rule failed; all drafts are verified")
        return
    for (number, *_), length in zip(asked, lengths, strict=True):
        proposal = proposals[number]
        if length < len(proposal.token_ids):
            proposals[number] = replace(
                proposal, token_ids=proposal.token_ids[:length], confidences=proposal.confidences[:length]
            )


def _ask(
    drafter: Drafter,
    name: str,
    parts: Sequence[PlannedSequence],
    proposals: dict[int, DraftProposal],
    faults: dict[int, str],
    rule: DraftRule | None,
) -> None:
    try:
        answers = drafter.propose([_draft_request(part, rule) for part in parts])
        cut = [_admissible(answer, part) for part, answer in zip(parts, answers, strict=True)]
    except Exception as error:
        # Only the target may fail a request. What the drafter holds for these is in an unknown state.
        for part in parts:
            release(drafter, part.sequence.number)
        if len(parts) == 1:
            log.warning("drafter %s failed; a request goes on without drafts", name, exc_info=True)
            faults[parts[0].sequence.number] = f"drafter {name} failed: {type(error).__name__}: {error}"
            return
        for part in parts:
            _ask(drafter, name, [part], proposals, faults, rule)
        return
    proposals.update((part.sequence.number, proposal) for part, proposal in zip(parts, cut, strict=True))


def release(drafter: Drafter, sequence_number: int) -> None:
    """Let a drafter forget a sequence; it cannot stop the engine by failing at that."""
    try:
        drafter.release(sequence_number)
    except Exception:
        log.exception("drafter %s could not forget a sequence", drafter.name)


def learn(drafter: Drafter, scope: Hashable, token_ids: Sequence[int]) -> None:
    """Give a finished answer to a drafter; it cannot stop the engine by failing at that."""
    try:
        drafter.learn(scope, token_ids)
    except Exception:
        log.exception("drafter %s could not learn from an answer", drafter.name)


def forward(
    planned: Sequence[PlannedSequence], proposals: Proposals, model: CausalModel, kv: KVStore
) -> np.ndarray:
    """Run the target once over all parts of a step.

    Returns:
        float32 logits [rows that need them, vocab], part after part.
    """
    with torch.inference_mode():
        logits = model.forward([_slice(part, proposals) for part in planned], kv)
    return logits.numpy(force=True)


def judge(planned: Sequence[PlannedSequence], proposals: Proposals, logits: Rows) -> list[Outcome]:
    """Compare the drafts with the target's logits, sequence by sequence."""
    if isinstance(logits, StepError):
        return [Outcome(part, error=logits) for part in planned]
    outcomes: list[Outcome] = []
    first_row = 0
    for part in planned:
        num_rows = _num_logits(part, proposals)
        rows = logits[first_row : first_row + num_rows]
        try:
            outcomes.append(_judge_one(part, proposals, rows))
        except Exception as error:
            log.exception("a sequence could not be judged; the others go on")
            outcomes.append(Outcome(part, error=failed(error)))
        first_row += num_rows
    return outcomes


def _judge_one(part: PlannedSequence, proposals: Proposals, rows: np.ndarray) -> Outcome:
    """Judge one part by its rows [n, vocab], the last of which are those of the drafts."""
    scores = _score_prompt(part, rows)
    if not part.completes:
        return Outcome(part, prompt_logprobs=scores)
    proposal = _proposal(part, proposals)
    sequence = part.sequence
    try:
        verdict = verify(
            sequence.request.speculation.verification,
            rows[len(rows) - len(proposal.token_ids) - 1 :],
            proposal.token_ids,
            proposal.sampled_from,
            sequence.sampling,
        )
    except GenerationError as error:
        # An answer keeps its error, whose traceback would keep the logits of the whole step.
        return Outcome(part, prompt_logprobs=scores, error=error.with_traceback(None))
    return Outcome(part, verdict, len(proposal.token_ids), scores)


def failed(error: Exception) -> StepError:
    """Return the error of a request whose step failed, with its cause, whose traceback is for the log alone:
    it would keep what the step computed for as long as somebody keeps the answer."""
    outcome = StepError(
        given=f"a step that failed: {type(error).__name__}: {error}",
        expected="a forward pass of the target, and a token for each sequence in it",
        remedy="Send the request again; if it fails again, the log has the cause",
    )
    outcome.__cause__ = error.with_traceback(None)
    return outcome


def _score_prompt(part: PlannedSequence, rows: np.ndarray) -> tuple[PositionLogprobs, ...]:
    """Return the log-probabilities of the prompt's tokens of which these rows [n, vocab] tell first."""
    sequence = part.sequence
    if sequence.num_prompt_logprobs is None:
        return ()
    num_known = len(sequence.prompt_logprobs)
    wanted = sequence.token_ids[num_known : sequence.num_prompt_tokens][
        : sequence.num_scored_rows(part.num_tokens)
    ]
    num_real = sequence.sampling.num_real_tokens
    return tuple(
        position_logprobs(row[:num_real], token_id, sequence.num_prompt_logprobs)
        for row, token_id in zip(rows, wanted, strict=False)
    )


def _draft_request(part: PlannedSequence, rule: DraftRule | None) -> DraftRequest:
    sequence = part.sequence
    return DraftRequest(
        sequence_id=sequence.number,
        token_ids=sequence.token_ids,
        draft_length=part.draft_length,
        sampling=sequence.sampling,
        verification=sequence.request.speculation.verification,
        scope=sequence.answer_scope,
        rule=rule,
    )


def _admissible(proposal: DraftProposal, part: PlannedSequence) -> DraftProposal:
    """Cut a proposal at its planned length and before the first token that could not stand.

    That is an id that the target does not know, or one that the grammar forbids. Where drafts were sampled
    from a distribution, the forbidden one is kept as the last: to drop it by looking at it would not keep the
    distribution, and verification rejects it anyway.
    """
    sampling = part.sequence.sampling
    keep = 0
    for token_id in proposal.token_ids[: part.draft_length]:
        if not 0 <= token_id < sampling.num_real_tokens:
            break
        keep += 1
    if sampling.grammar is not None:
        num_admissible = sampling.grammar.num_admissible(proposal.token_ids[:keep])
        keep = min(keep, num_admissible + (proposal.sampled_from is not None))
    if keep == len(proposal.token_ids):
        return proposal
    sampled_from = None if proposal.sampled_from is None else proposal.sampled_from[:keep]
    return DraftProposal(
        proposal.token_ids[:keep], proposal.confidences[:keep], sampled_from, proposal.source
    )


def _proposal(part: PlannedSequence, proposals: Proposals) -> DraftProposal:
    return proposals.get(part.sequence.number, DraftProposal())


def _num_logits(part: PlannedSequence, proposals: Proposals) -> int:
    num_scored = part.sequence.num_scored_rows(part.num_tokens)
    if not part.completes:
        return num_scored
    return max(1, num_scored) + len(_proposal(part, proposals).token_ids)


def _slice(part: PlannedSequence, proposals: Proposals) -> SequenceSlice:
    sequence = part.sequence
    start = sequence.num_computed_tokens
    known = sequence.token_ids[start : start + part.num_tokens]
    return SequenceSlice(
        token_ids=[*known, *_proposal(part, proposals).token_ids],
        start=start,
        block_ids=sequence.table.block_ids,
        num_logits=_num_logits(part, proposals),
    )
