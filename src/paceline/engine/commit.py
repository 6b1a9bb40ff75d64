"""The one place that grows a sequence, shortens its KV to what stands, or ends it."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.engine.scheduler import PlannedSequence
from paceline.engine.sequence import Sequence, SequenceStatus
from paceline.records import FinishReason, PositionLogprobs
from paceline.sampling.verdict import Verdict


def commit_step(
    part: PlannedSequence,
    verdict: Verdict | None,
    num_drafted: int,
    now: float,
    prompt_logprobs: Iterable[PositionLogprobs] = (),
) -> None:
    """Take over one sequence's share of a step.

    Args:
        part: what was computed.
        verdict: the tokens to emit, or None for a prefill chunk that does not reach the last known token.
        num_drafted: drafts that were verified.
        now: the time at which the tokens became known, seconds.
        prompt_logprobs: of the next tokens of the prompt.
    """
    sequence = part.sequence
    sequence.progressed_at = now
    sequence.prompt_logprobs.extend(prompt_logprobs)
    sequence.num_computed_tokens += part.num_tokens
    if verdict is None:
        sequence.table.publish(sequence.token_ids, sequence.num_computed_tokens)
        return
    if sequence.num_output_tokens:
        sequence.num_steps += 1
        sequence.num_drafted += num_drafted
        if num_drafted:
            sequence.draft_lengths.append(num_drafted)
    reason = _grow(sequence, verdict, now)
    # Accepted drafts keep the KV that verification wrote; what is rejected is only a shorter length.
    sequence.num_computed_tokens = len(sequence.token_ids) - 1
    sequence.table.publish(sequence.token_ids, sequence.num_computed_tokens)
    sequence.table.trim(sequence.num_computed_tokens)
    if reason is not None:
        finish(sequence, reason)


def finish(sequence: Sequence, reason: FinishReason, error: Exception | None = None) -> None:
    """End a sequence and give its blocks back."""
    if reason is not FinishReason.STOP or sequence.detokenizer.matched_stop is None:
        sequence.unsent_text += sequence.detokenizer.flush()
    else:
        _cut_to_text(sequence)
    sequence.finish_reason = reason
    sequence.error = error
    sequence.status = SequenceStatus.FINISHED
    sequence.table.clear()


def _grow(sequence: Sequence, verdict: Verdict, now: float) -> FinishReason | None:
    """Append the step's tokens one by one up to the first reason to end, which is returned; drop the rest."""
    for index, token_id in enumerate(verdict.token_ids):
        sequence.token_ids.append(token_id)
        sequence.sampling.append((token_id,))
        sequence.is_draft.append(index < verdict.num_accepted)
        if verdict.logprobs is not None:
            sequence.logprobs.append(verdict.logprobs[index])
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        sequence.last_token_at = now
        if (reason := _reason_to_end(sequence, token_id)) is not None:
            return reason
    return None


def _reason_to_end(sequence: Sequence, token_id: int) -> FinishReason | None:
    """Stops come before the cap: a token that does both ends with "stop"."""
    is_end = token_id in sequence.sampling.end_token_ids
    if is_end and sequence.num_output_tokens > sequence.request.sampling.min_tokens:
        return FinishReason.STOP
    sequence.unsent_text += sequence.detokenizer.push(token_id)
    if sequence.detokenizer.matched_stop is not None:
        return FinishReason.STOP
    if sequence.sampling.grammar is not None and sequence.sampling.grammar.is_complete:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(sequence.token_ids) >= sequence.max_total_tokens else None


def _cut_to_text(sequence: Sequence) -> None:
    """After a stop string, keep only the tokens whose text is in the answer."""
    num_kept = sequence.detokenizer.num_kept_tokens
    del sequence.token_ids[sequence.num_prompt_tokens + num_kept :]
    del sequence.is_draft[num_kept:]
    del sequence.logprobs[num_kept:]
