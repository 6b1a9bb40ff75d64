"""Native passes over one row of logits, which need no sort of the vocabulary.

They are `paceline.sampling`'s own numbers, ties included; `native/sampling.h` says what is equal and what is
within rounding. Rows are contiguous, float32 or float64, without padding tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import _native

Row = NDArray[np.float32] | NDArray[np.float64]
Ids = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Truncation:
    """Which tokens may come, in this order: top-k, then top-p, then min-p."""

    top_k: int = 0
    """Keep the k greatest; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens that reaches this share; 1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less probable than this share of the most probable one."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Which random numbers a sample takes: see `paceline.sampling.noise`."""

    seed: int
    """64 bits, not negative."""
    output_index: int
    purpose: int = 0
    salt: int = 0


def arg_max(logits: Row) -> int:
    """Return the index of the greatest logit, the lowest of equals; of the first NaN, where there is one.

    Raises:
        ValueError: the row is empty.
    """
    return _native.arg_max(logits)


def log_sum_exp(logits: Row) -> float:
    """Return log(sum(exp(logits))).

    Raises:
        ValueError: the greatest logit is NaN or infinite.
    """
    return _native.log_sum_exp(logits)


def rough_exp_sum(logits: Row, value: float, temperature: float) -> float:
    """Return sum(exp((logits - value) / temperature)) within 2e-5 of itself: a hint, and quick.

    Args:
        logits: [vocab], no NaN.
        value: what is subtracted from each; a score above 88 counts as 88, and a sum of such may be infinite.
        temperature: from 1e-30 to 1e30.

    Raises:
        ValueError: the temperature is another.
    """
    return _native.rough_exp_sum(logits, value, temperature)


def top_n(logits: Row, count: int) -> tuple[Ids, Scores]:
    """Return the `count` greatest logits above minus infinity, best first, equal ones by lowest id.

    Returns:
        ids [n] and their logits [n], n at most `count`.
    """
    return _native.top_n(logits, count)


def select(logits: Row, temperature: float, truncation: Truncation) -> tuple[Ids, Scores]:
    """Return the tokens that may come, and (logit - greatest) / temperature of each.

    Args:
        logits: [vocab].
        temperature: above 0.
        truncation: what else limits the choice.

    Returns:
        ids [n], rising, and scores [n].

    Raises:
        ValueError: the greatest logit is NaN or infinite.
    """
    return _native.select(logits, temperature, truncation.top_k, truncation.top_p, truncation.min_p)


def sample(logits: Row, temperature: float, truncation: Truncation, draw: Draw) -> int:
    """Return the token with the greatest score plus Gumbel noise among those that may come: an exact sample.

    Args:
        logits: [vocab].
        temperature: 0 returns the greatest.
        truncation: what else limits the choice.
        draw: the random numbers.

    Raises:
        ValueError: the greatest logit is NaN or infinite.
    """
    return _native.sample(
        logits,
        temperature,
        truncation.top_k,
        truncation.top_p,
        truncation.min_p,
        draw.seed,
        draw.output_index,
        draw.purpose,
        draw.salt,
    )
