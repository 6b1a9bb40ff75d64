"""Rejection verification: highest acceptance at high temperature; same distribution, not the same bytes.

A draft d sampled from q is accepted with probability min(1, p(d) / q(d)); the first rejected one is replaced
by a sample of the residual, max(p - q, 0) normalised; after k accepted ones comes a bonus from p. Each
emitted token then has exactly the target's distribution p given the tokens before it. Sources: Leviathan,
Kalman and Matias, "Fast inference from transformers via speculative decoding", 2023; Chen et al.,
"Accelerating large language model decoding with speculative sampling", 2023.

p and q are the distributions *after* processors, and q is the one that the draft was really drawn from. A
draft that was not drawn (a lookup, an arg-max) has a one-hot q: accept with p(d), residual p without d. What
a drafter *claims* of its confidence is never read: a ratio with it gives another distribution.

Why this stays exact with draws that are functions of (seed, output index): the theorem needs three things of
position j, given the tokens emitted before it.

- The accept number and the correction noise of position j are independent of everything looked at before.
  They have purposes of their own; both are read in the step that emits position j and in no other.
- The draft at j has distribution q. Its noise, of a third purpose, may have been read in an earlier step, for
  a draft at j that fell because one before it had been rejected. No emitted token depends on that draft: the
  rejection hung on draws of earlier positions only. So, given the emitted tokens, the noise is as good as
  fresh, and drafting position j anew with it is exact.
- Whether position j is drafted at all does not hang on that noise. A draft length that is planned from
  emitted tokens, from acceptance or from distributions is fine. What must not be: to propose a token or not
  by looking at that token (by its own probability, say), or to plan by drafts that fell unjudged. For the
  second there is a remedy: `draft_sample(..., step_start=state.num_output_tokens)` makes the noise of each
  step new.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.errors import GenerationError
from paceline.sampling.choice import sample
from paceline.sampling.distribution import Distribution
from paceline.sampling.logprobs import step_logprobs
from paceline.sampling.noise import Purpose, uniform
from paceline.sampling.processors import Logits, process
from paceline.sampling.state import SamplingState
from paceline.sampling.verdict import Verdict, check_num_rows


def draft_sample(distribution: Distribution, seed: int, output_index: int, step_start: int = 0) -> int:
    """Return a draft drawn from the drafter's own distribution, which must go along as its `sampled_from`.

    Args:
        distribution: the drafter's, after processors.
        seed: the sequence's 64-bit seed.
        output_index: the output position that is drafted.
        step_start: the output length when the step began; see the head of this module.
    """
    return sample(distribution, seed, output_index, Purpose.DRAFT, step_start)


def verify(
    logits: Logits,
    draft_token_ids: Sequence[int],
    sampled_from: Sequence[Distribution] | None,
    state: SamplingState,
) -> Verdict:
    """Emit the accepted drafts and one token more.

    Args:
        logits: [k + 1, vocab], the target's; row i is given the first i drafts.
        draft_token_ids: k tokens; 0 of them is plain decoding.
        sampled_from: the k distributions that they were drawn from; none where they were not drawn.
        state: the sequence, before this step. Not changed.

    Raises:
        GenerationError: no token can be sampled at the first position. At a later one the step just ends
            before it, so that the request fails where it would have failed without drafts.
    """
    check_num_rows(logits, draft_token_ids)
    proposals = sampled_from
    if proposals is None:
        proposals = [Distribution.one_hot(draft) for draft in draft_token_ids]
    if len(proposals) != len(draft_token_ids):
        raise ValueError(
            f"{len(proposals)} distributions for {len(draft_token_ids)} drafts; one each was expected"
        )
    emitted: list[int] = []
    for row, draft, q in zip(logits, (*draft_token_ids, None), (*proposals, None), strict=True):
        try:
            p = process(row, state, emitted)
        except GenerationError:
            if not emitted:
                raise
            break
        output_index = state.num_output_tokens + len(emitted)
        if draft is None or q is None:
            emitted.append(sample(p, state.seed, output_index, Purpose.CORRECTION))
        elif accepts(p, q, draft, uniform(state.seed, output_index, Purpose.ACCEPT)):
            emitted.append(draft)
        else:
            emitted.append(sample(residual(p, q), state.seed, output_index, Purpose.CORRECTION))
            break
    return Verdict(tuple(emitted), len(emitted) - 1, step_logprobs(logits, emitted, state))


def accepts(p: Distribution, q: Distribution, draft: int, u: float) -> bool:
    """Return whether a draft from q stands: u < p(draft) / q(draft), u uniform in (0, 1)."""
    return u * q.prob_of(draft) < p.prob_of(draft)


def residual(p: Distribution, q: Distribution) -> Distribution:
    """Return max(p - q, 0) normalised: what p gives beyond what accepted drafts already cover.

    Where p and q differ by rounding alone nothing is left, and p itself is as good.
    """
    excess = p.probs - q.probs_at(p.token_ids)
    keep = excess > 0.0
    if not keep.any():
        return p
    log_excess = np.log(excess[keep])
    return Distribution.from_scores(p.token_ids[keep], log_excess - log_excess.max())
