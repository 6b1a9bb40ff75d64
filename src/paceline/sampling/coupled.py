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
from paceline.sampling.distribution import Distribution
from paceline.sampling.logprobs import step_logprobs
from paceline.sampling.noise import Purpose, gumbel
from paceline.sampling.processors import Logits, process
from paceline.sampling.state import SamplingState
from paceline.sampling.verdict import Verdict, check_num_rows


def sample(
    distribution: Distribution, seed: int, output_index: int, purpose: int = Purpose.COUPLED, salt: int = 0
) -> int:
    """Return the arg-max of log-probability plus Gumbel noise, ties to the lowest id: an exact sample.

    Args:
        distribution: what to sample from; the noise of tokens outside of it is not even computed.
        seed: the sequence's 64-bit seed.
        output_index: position in the output, from 0.
        purpose: one of `Purpose`; 0 is the target's own sample.
        salt: see `noise.gumbel`.
    """
    if distribution.is_one_hot:
        return int(distribution.token_ids[0])
    noise = gumbel(seed, output_index, distribution.token_ids, purpose, salt)
    return int(distribution.token_ids[(distribution.log_probs + noise).argmax()])


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
            distribution = process(row, state, emitted)
        except GenerationError:
            if not emitted:
                raise
            break
        emitted.append(sample(distribution, state.seed, state.num_output_tokens + len(emitted)))
        if emitted[-1] != draft:
            break
    return Verdict(tuple(emitted), len(emitted) - 1, step_logprobs(logits, emitted, state))
