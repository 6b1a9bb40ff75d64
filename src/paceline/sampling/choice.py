"""One token from one row of logits, by the coupled rule, without building the distribution.

`choose` is `coupled.sample(process(...))`, which is its specification and what runs where native code was not
built; natively, a row takes a pass or two and no sort. Whoever needs the distribution itself calls `process`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.kernels.native import native
from paceline.sampling.distribution import Distribution
from paceline.sampling.noise import Purpose, gumbel
from paceline.sampling.processors import Logits, adjust, process
from paceline.sampling.state import SamplingState


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


def choose(logits: Logits, state: SamplingState, drafted: Sequence[int] = ()) -> int:
    """Return the coupled sample at output index `state.num_output_tokens + len(drafted)`.

    Args:
        logits: [vocab], float32; at least `state.num_real_tokens` wide. Not changed.
        state: the sequence. Not changed.
        drafted: tokens between the output so far and this position.

    Raises:
        GenerationError: a logit is NaN or plus infinity, or none is above minus infinity.
    """
    output_index = state.num_output_tokens + len(drafted)
    if native is None:
        return sample(process(logits, state, drafted), state.seed, output_index)
    params = state.params
    scores, best = adjust(logits, state, drafted)
    if params.is_greedy:
        return best
    return int(
        native.sample(
            scores, params.temperature, params.top_k, params.top_p, params.min_p, state.seed, output_index
        )
    )


def choose_with_confidence(
    logits: Logits, state: SamplingState, drafted: Sequence[int] = ()
) -> tuple[int, float]:
    """Return what `choose` does, and the probability that the row itself gives that token.

    The probability is of the distribution before truncation, at the request's temperature (1 where that is
    0): a hint of how sure the model is, also where one token alone is left to choose from. Tokens that the
    grammar rules out do not count, since the target cannot choose them either.
    """
    token_id = choose(logits, state, drafted)
    temperature = state.params.temperature or 1.0
    scores = logits[: state.num_real_tokens].astype(np.float32, copy=False)
    chosen = scores[token_id]
    if (allowed := state.allowed(drafted)) is not None:
        scores = scores[allowed]
    return token_id, 1.0 / _rough_exp_sum(scores, chosen, min(max(temperature, 1e-4), 1e30))


def _rough_exp_sum(scores: Logits, value: float, temperature: float) -> float:
    """Return sum(exp((scores - value) / temperature)) in float32: a hint need not be exact."""
    if native is not None:
        return float(native.rough_exp_sum(scores, value, temperature))
    # Clipped, since a tiny temperature may overflow.
    with np.errstate(over="ignore"):
        return float(np.exp(np.maximum((scores - value) / np.float32(temperature), -80.0)).sum())
