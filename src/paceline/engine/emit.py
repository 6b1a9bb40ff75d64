"""From sequences to the records that callers see."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

from paceline.engine.sequence import Sequence, SequenceStatus
from paceline.records import FinishReason, GenerationResult, SpeculationStats, StreamChunk, Timing, Usage


def take_chunk(sequence: Sequence) -> StreamChunk | None:
    """Return what has become certain since the last call; None if nothing has and the sequence goes on."""
    is_finished = sequence.status is SequenceStatus.FINISHED
    # While a stop string may still cut tokens off, only those whose text is certain are shown.
    num_certain = sequence.num_output_tokens if is_finished else sequence.detokenizer.num_kept_tokens
    begin, end = sequence.num_sent_tokens, max(num_certain, sequence.num_sent_tokens)
    text, sequence.unsent_text = sequence.unsent_text, ""
    if not (text or end > begin or is_finished):
        return None
    sequence.text += text
    sequence.num_sent_tokens = end
    return StreamChunk(
        request_id=sequence.request.id,
        text=text,
        token_ids=tuple(sequence.output_token_ids[begin:end]),
        num_accepted=sum(sequence.is_draft[begin:end]),
        is_draft=tuple(sequence.is_draft[begin:end]),
        logprobs=(
            None if sequence.request.sampling.logprobs is None else tuple(sequence.logprobs[begin:end])
        ),
        index=sequence.index,
        result=make_result(sequence) if is_finished else None,
    )


def make_result(sequence: Sequence) -> GenerationResult:
    """Return the whole answer of a finished sequence."""
    num_output = sequence.num_output_tokens
    return GenerationResult(
        id=sequence.request.id,
        route=sequence.request.route,
        text=sequence.text,
        token_ids=tuple(sequence.output_token_ids),
        finish_reason=sequence.finish_reason or FinishReason.ERROR,
        usage=Usage(sequence.num_prompt_tokens, num_output),
        speculation=SpeculationStats(
            drafter=_drafter(sequence),
            num_steps=sequence.num_steps,
            num_drafted=sequence.num_drafted,
            num_accepted=sum(sequence.is_draft),
            num_emitted=max(0, num_output - 1),
            fallback=sequence.fallback or sequence.idle_reason,
            drafted_by_position=_at_least(sequence.draft_lengths),
            accepted_by_position=_at_least(_runs(sequence.is_draft)),
        ),
        timing=_timing(sequence),
        index=sequence.index,
        prompt_logprobs=None if sequence.num_prompt_logprobs is None else tuple(sequence.prompt_logprobs),
        seed=sequence.sampling.seed,
        logprobs=None if sequence.request.sampling.logprobs is None else tuple(sequence.logprobs),
        num_cached_tokens=sequence.num_cached_tokens,
        error=sequence.error,
    )


def _timing(sequence: Sequence) -> Timing:
    first, last = sequence.first_token_at, sequence.last_token_at
    return Timing(
        ttft_s=None if first is None else first - sequence.submitted_at,
        decode_s=0.0 if first is None or last is None else last - first,
        draft_s=sequence.draft_s,
        verify_s=sequence.verify_s,
        num_decoded=max(0, sequence.num_output_tokens - 1),
        first_token_at=first,
        last_token_at=last,
    )


def _drafter(sequence: Sequence) -> str | None:
    """Return the drafter that was asked for, or where the policy chose, what it chose."""
    speculation = sequence.request.speculation
    if speculation.is_adaptive:
        return "+".join(sorted(sequence.used_drafters)) or None
    return speculation.drafter if speculation.enabled else None


def _runs(is_draft: Iterable[bool]) -> Iterator[int]:
    """Yield how many drafts were accepted together: each step ends with a token of the target's own, so that
    accepted drafts that follow one another are of one step."""
    return (sum(1 for _ in run) for drafted, run in itertools.groupby(is_draft) if drafted)


def _at_least(lengths: Iterable[int]) -> tuple[int, ...]:
    """Return how many of the lengths are at least 1, at least 2, ..."""
    counts = Counter(lengths)
    totals = itertools.accumulate(counts[length] for length in range(max(counts, default=0), 0, -1))
    return tuple(reversed(list(totals)))
