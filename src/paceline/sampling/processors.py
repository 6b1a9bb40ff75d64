"""Logits to the distribution that a token is chosen from, at one position given what came before it.

Target and draft model go through the same function, so that a draft is guessed at under the rules it is
judged by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import GenerationError
from paceline.sampling.distribution import Distribution
from paceline.sampling.noise import NOISE_SPAN
from paceline.sampling.selection import Indices, greatest, nucleus
from paceline.sampling.state import SamplingState

Logits = npt.NDArray[np.floating[Any]]
Scores = npt.NDArray[np.float64]


def process(logits: Logits, state: SamplingState, drafted: Sequence[int] = ()) -> Distribution:
    """Return the distribution of the token at output index `state.num_output_tokens + len(drafted)`.

    In this order: repetition penalty (CTRL, Keskar et al. 2019) on tokens of prompt, output and `drafted`;
    presence and frequency penalties on tokens of output and `drafted`; logit bias; ban of end tokens before
    `min_tokens`, and of tokens that the grammar does not allow there; the greatest logit alone at temperature
    0. Else: division by the temperature; all but tokens under 2**-59 times as probable as the most probable,
    which no noise of ours could choose; of those, the `top_k` most probable; of those, renormalised, the
    smallest set of most probable tokens that reaches `top_p`, the token that crosses included; of those, the
    ones at least `min_p` times as probable as the most probable (Nguyen et al., arXiv 2407.01082). Wherever
    tokens are equal, the lower id comes first. Ids of padding rows never come.

    Args:
        logits: [vocab], float32; at least `state.num_real_tokens` wide. Not changed.
        state: the sequence. Not changed.
        drafted: tokens between the output so far and this position.

    Raises:
        GenerationError: a logit is NaN or plus infinity, or none is above minus infinity, or the grammar lets
            no token come.
    """
    scores, best = adjust(logits, state, drafted)
    if state.params.is_greedy:
        return Distribution.one_hot(best)
    return _truncate(_divide_by_temperature(scores, best, state.params.temperature), state)


def adjust(logits: Logits, state: SamplingState, drafted: Sequence[int] = ()) -> tuple[Logits, int]:
    """Apply penalties, bias and bans: all that comes before the temperature.

    Returns:
        scores [num_real_tokens], a view of `logits` where nothing changes them, and the id of the greatest,
        the lowest of equals.

    Raises:
        GenerationError: see `process`.
    """
    if len(logits) < state.num_real_tokens:
        raise ValueError(f"{len(logits)} logits for a vocabulary of {state.num_real_tokens} tokens")
    output_index = state.num_output_tokens + len(drafted)
    scores = _adjust(logits[: state.num_real_tokens], state, drafted, output_index)
    best = int(scores.argmax())  # that of a NaN, where there is one
    _check_peak(float(scores[best]), output_index)
    return scores, best


def _adjust(logits: Logits, state: SamplingState, drafted: Sequence[int], output_index: int) -> Logits:
    """Apply what changes single logits; returns `logits` itself where nothing does."""
    banned = state.banned_token_ids(output_index)
    allowed = state.allowed(drafted)
    is_penalised = state.has_repetition_penalty or state.has_count_penalty
    if not (is_penalised or len(state.bias_token_ids) or len(banned)):
        # In the logits' own type: a mask changes nothing else, not by a bit.
        return logits if allowed is None else np.where(allowed, logits, logits.dtype.type(-np.inf))
    scores = logits.astype(np.float64)
    if is_penalised:
        _penalise(scores, state, drafted)
    scores[state.bias_token_ids] += state.bias_values
    scores[banned] = -np.inf
    if allowed is not None:
        scores[~allowed] = -np.inf
    return scores


def _penalise(scores: Scores, state: SamplingState, drafted: Sequence[int]) -> None:
    params = state.params
    if state.has_repetition_penalty:
        ids = state.seen_token_ids(drafted)
        seen = scores[ids]
        with np.errstate(over="ignore"):
            scores[ids] = np.where(
                seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty
            )
    if state.has_count_penalty:
        ids, counts = state.output_counts(drafted)
        scores[ids] -= params.presence_penalty + params.frequency_penalty * counts


def _check_peak(peak: float, output_index: int) -> None:
    if np.isfinite(peak):
        return
    if peak == -np.inf:
        given = "no token above minus infinity"
        remedy = "Lower min_tokens if only end tokens were left; else the model's numbers overflowed"
    else:
        given = f"a logit of {peak}"
        remedy = (
            "Check the model's file and, if it is set, repetition_penalty; the model's numbers overflowed"
        )
    raise GenerationError(
        given=f"{given} at output position {output_index}",
        expected="finite logits for the tokens that may come",
        remedy=remedy,
    )


def _divide_by_temperature(scores: Logits, best: int, temperature: float) -> Scores:
    """Return log-probabilities up to a constant, the greatest 0; overflow to minus infinity is right."""
    shifted: Scores = np.subtract(scores, scores[best], dtype=np.float64)
    with np.errstate(over="ignore"):
        shifted /= temperature
    return shifted


def _truncate(scores: Scores, state: SamplingState) -> Distribution:
    """Keep the tokens that may come: each rule sees what the one before it left."""
    params = state.params
    ids = np.arange(len(scores))
    if scores.min() < -NOISE_SPAN:
        ids, scores = _keep(np.flatnonzero(scores >= -NOISE_SPAN), ids, scores)
    if params.top_k > 0:
        ids, scores = _keep(greatest(scores, params.top_k), ids, scores)
    if params.top_p < 1.0:
        ids, scores = _keep(nucleus(scores, params.top_p), ids, scores)
    if params.min_p > 0.0:
        ids, scores = _keep(np.flatnonzero(scores >= np.log(params.min_p)), ids, scores)
    return Distribution.from_scores(ids, scores)


def _keep(indices: Indices, ids: Indices, scores: Scores) -> tuple[Indices, Scores]:
    return ids[indices], scores[indices]
