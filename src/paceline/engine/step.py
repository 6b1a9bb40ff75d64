"""Draft and verify: the two stages of a step that compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.drafters.interface import Drafter, DraftProposal, DraftRequest
from paceline.engine.scheduler import PlannedSequence
from paceline.errors import GenerationError
from paceline.models.interface import CausalModel, KVStore, SequenceSlice
from paceline.sampling.sampler import verify
from paceline.sampling.verdict import Verdict

Proposals = Mapping[int, DraftProposal]
"""Proposals by sequence number."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the target said of one part of a step."""

    part: PlannedSequence
    verdict: Verdict | None = None
    """None for a prefill chunk that does not reach the last known token."""
    num_drafted: int = 0
    error: GenerationError | None = None
    """Why this one sequence cannot go on."""


def draft(drafting: Sequence[PlannedSequence], drafters: Mapping[str, Drafter]) -> Proposals:
    """Ask each drafter once for all sequences that use it."""
    by_drafter: dict[str, list[PlannedSequence]] = {}
    for part in drafting:
        by_drafter.setdefault(part.sequence.request.speculation.drafter or "", []).append(part)
    proposals: dict[int, DraftProposal] = {}
    for name, parts in by_drafter.items():
        answers = drafters[name].propose([_draft_request(part) for part in parts])
        for part, answer in zip(parts, answers, strict=True):
            proposals[part.sequence.number] = _admissible(answer, part)
    return proposals


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


def judge(planned: Sequence[PlannedSequence], proposals: Proposals, logits: np.ndarray) -> list[Outcome]:
    """Compare the drafts with the target's logits, sequence by sequence."""
    outcomes: list[Outcome] = []
    first_row = 0
    for part in planned:
        num_rows = _num_logits(part, proposals)
        outcomes.append(_judge_one(part, proposals, logits[first_row : first_row + num_rows]))
        first_row += num_rows
    return outcomes


def _judge_one(part: PlannedSequence, proposals: Proposals, rows: np.ndarray) -> Outcome:
    if not part.completes:
        return Outcome(part)
    proposal = _proposal(part, proposals)
    sequence = part.sequence
    try:
        verdict = verify(
            sequence.request.speculation.verification,
            rows,
            proposal.token_ids,
            proposal.sampled_from,
            sequence.sampling,
        )
    except GenerationError as error:
        return Outcome(part, error=error)
    return Outcome(part, verdict, len(proposal.token_ids))


def _draft_request(part: PlannedSequence) -> DraftRequest:
    sequence = part.sequence
    return DraftRequest(
        sequence_id=sequence.number,
        token_ids=sequence.token_ids,
        draft_length=part.draft_length,
        sampling=sequence.sampling,
        verification=sequence.request.speculation.verification,
        scope=sequence.answer_scope,
    )


def _admissible(proposal: DraftProposal, part: PlannedSequence) -> DraftProposal:
    """Cut a proposal at its planned length and at the first id that the target does not know."""
    num_real = part.sequence.sampling.num_real_tokens
    keep = 0
    for token_id in proposal.token_ids[: part.draft_length]:
        if not 0 <= token_id < num_real:
            break
        keep += 1
    if keep == len(proposal.token_ids):
        return proposal
    sampled_from = None if proposal.sampled_from is None else proposal.sampled_from[:keep]
    return DraftProposal(proposal.token_ids[:keep], proposal.confidences[:keep], sampled_from)


def _proposal(part: PlannedSequence, proposals: Proposals) -> DraftProposal:
    return proposals.get(part.sequence.number, DraftProposal())


def _num_logits(part: PlannedSequence, proposals: Proposals) -> int:
    return 1 + len(_proposal(part, proposals).token_ids) if part.completes else 0


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
