"""The random numbers of every sample, each a pure function of (seed, output index, token id, purpose).

A counter-based generator has no state, so a draw cannot depend on batch mates, on how many drafts were
thrown away, or on what ran before. The numbers are fixed for all time: tests hold golden vectors of them.

Generator: Philox-4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
2011). Key: the 64-bit seed, low word first. Counter words: (output index, token id, purpose, salt).
"""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Word: TypeAlias = Any
"""A 32-bit word: an int, or a uint64 array of them, wide enough that products do not overflow."""

_MASK_32 = 0xFFFFFFFF
_MASK_64 = 0xFFFFFFFFFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10
NOISE_SPAN = 41.0
"""No two Gumbel numbers of this module are further apart: from u = 2**-53 to 1 - 2**-53 they span 40.35."""
_FEW = 16
_CHUNK = 8192
"""Tokens worked on at once, so that the temporaries stay in a core's own cache."""


class Purpose(enum.IntEnum):
    """What a draw is for. Draws of different purposes are independent."""

    COUPLED = 0
    """The target's own sample at a position, and a draft model's coupled guess at it."""
    DRAFT = 1
    """A draft sampled for rejection verification."""
    ACCEPT = 2
    """The uniform number that accepts or rejects such a draft."""
    CORRECTION = 3
    """The token that rejection verification adds: after a rejected draft, or as the bonus."""
    CHOICE_SEED = 4
    """The seeds of the choices of one request."""


def philox4x32(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> tuple[Word, Word, Word, Word]:
    """Return four random 32-bit words for each counter.

    Args:
        counter: four words; arrays among them must broadcast against each other.
        key: two words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product_0, product_1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product_1 >> 32) ^ c1 ^ k0, product_1 & _MASK_32
        c2, c3 = (product_0 >> 32) ^ c3 ^ k1, product_0 & _MASK_32
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK_32, (k1 + _KEY_STEPS[1]) & _MASK_32
    return c0, c1, c2, c3


def _key(seed: int) -> tuple[int, int]:
    return seed & _MASK_32, (seed >> 32) & _MASK_32


def _to_unit_interval(w0: Any, w1: Any) -> Any:
    """Turn two words into a number strictly between 0 and 1; exact, since 52 bits and a half fit a double."""
    return ((w0 << 20 | w1 >> 12) + 0.5) * 2.0**-52


def uniform(seed: int, output_index: int, purpose: int, token_id: int = 0) -> float:
    """Return a number strictly between 0 and 1.

    Args:
        seed: 64 bits; negative numbers count modulo 2**64.
        output_index: position in the output, from 0.
        purpose: one of `Purpose`.
        token_id: the counter's second word.
    """
    w0, w1, _, _ = philox4x32((output_index, token_id, int(purpose), 0), _key(seed))
    return float(_to_unit_interval(w0, w1))


def gumbel(
    seed: int,
    output_index: int,
    token_ids: npt.NDArray[np.int64],
    purpose: int = Purpose.COUPLED,
    salt: int = 0,
) -> npt.NDArray[np.float64]:
    """Return standard Gumbel noise, -log(-log(u)), one number for each token id.

    A token's noise does not depend on which other tokens are asked for, so masking changes nothing else.

    Args:
        seed: 64 bits; negative numbers count modulo 2**64.
        output_index: position in the output, from 0.
        token_ids: int64 [n], each from 0 to 2**32 - 1.
        purpose: one of `Purpose`.
        salt: the counter's last word, for draws that must differ though all else is equal.

    Returns:
        float64 [n], between -3.61 and 36.74.
    """
    noise = np.empty(len(token_ids), dtype=np.float64)
    for start in range(0, len(token_ids), _CHUNK):
        w0, w1 = _words(seed, output_index, token_ids[start : start + _CHUNK], int(purpose), salt)
        noise[start : start + _CHUNK] = -np.log(-np.log(_to_unit_interval(w0, w1)))
    return noise


def _words(seed: int, output_index: int, token_ids: npt.NDArray[np.int64], purpose: int, salt: int) -> Any:
    """Return the first two words for each token; for a few tokens, ints are faster than short arrays."""
    if len(token_ids) > _FEW:
        return philox4x32((output_index, token_ids.astype(np.uint64), purpose, salt), _key(seed))[:2]
    words = [philox4x32((output_index, token, purpose, salt), _key(seed))[:2] for token in token_ids.tolist()]
    return np.array(words, dtype=np.uint64).T


def derive_seed(seed: int, choice: int) -> int:
    """Return the 64-bit seed of choice `choice` of a request.

    Choice 0 has the request's own seed. Choice j > 0 has the first two words, low word first, of Philox with
    the request's seed as key and the counter (j, 0, `Purpose.CHOICE_SEED`, 0).
    """
    if choice == 0:
        return seed & _MASK_64
    w0, w1, _, _ = philox4x32((choice, 0, int(Purpose.CHOICE_SEED), 0), _key(seed))
    return int(w0) | int(w1) << 32
