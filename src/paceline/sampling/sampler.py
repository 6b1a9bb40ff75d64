"""The one door to verification, whichever way drafts are judged. A row without drafts is k = 0 of the
same."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.records import Verification
from paceline.sampling import coupled, rejection
from paceline.sampling.distribution import Distribution
from paceline.sampling.processors import Logits
from paceline.sampling.state import SamplingState
from paceline.sampling.verdict import Verdict


def verify(
    verification: Verification,
    logits: Logits,
    draft_token_ids: Sequence[int],
    sampled_from: Sequence[Distribution] | None,
    state: SamplingState,
) -> Verdict:
    """Judge the drafts of one sequence in one step.

    Args:
        verification: the rule.
        logits: [k + 1, vocab], the target's; row i is given the first i drafts.
        draft_token_ids: k tokens, k >= 0.
        sampled_from: for rejection, the distributions that they were drawn from; none where they were not
            drawn.
        state: the sequence, before this step. Not changed.

    Raises:
        GenerationError: no token can be sampled at the first position.
    """
    if verification is Verification.COUPLED:
        return coupled.verify(logits, draft_token_ids, state)
    return rejection.verify(logits, draft_token_ids, sampled_from, state)
