"""Coupled (drafter-invariant) verification: the default, under which speculation never changes an answer.

The target's own sample at an output position is fixed by the accepted prefix, the parameters and the seed:
the arg-max of log-probability plus Gumbel noise that depends on (seed, output index, token id) alone. A draft
stands exactly when it is that sample. A drafter that adds the same noise to its own distribution often finds
it. Source: Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant speculative
decoding", arXiv 2408.07978, 2024.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.errors import GenerationError
from paceline.sampling.choice import choose, sample
from paceline.sampling.logprobs import step_logprobs
from paceline.sampling.processors import Logits
from paceline.sampling.state import SamplingState
from paceline.sampling.verdict import Verdict, check_num_rows

__all__ = ["sample", "verify"]


def verify(logits: Logits, draft_token_ids: Sequence[int], state: SamplingState) -> Verdict:
    """Emit the target's own samples up to the first that the draft missed, or one past the last draft.

    Args:
        logits: [k + 1, vocab], the target's; row i is given the first i drafts.
        draft_token_ids: k tokens; 0 of them is plain decoding.
        state: the sequence, before this step. Not changed.

    Raises:
        GenerationError: no token can be sampled at the first position. At a later one the step just ends
            before it, so that the request fails where it would have failed without drafts.
    """
    check_num_rows(logits, draft_token_ids)
    emitted: list[int] = []
    for row, draft in zip(logits, (*draft_token_ids, None), strict=True):
        try:
            emitted.append(choose(row, state, emitted))
        except GenerationError:
            if not emitted:
                raise
            break
        if emitted[-1] != draft:
            break
    return Verdict(tuple(emitted), len(emitted) - 1, step_logprobs(logits, emitted, state))
