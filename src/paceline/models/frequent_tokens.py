"""Lists of a vocabulary's most frequent tokens, for a draft model's reduced output layer.

A draft model reads half of its bytes to score 150,000 tokens, of which a few thousand make up nearly all
text. A token that is left out can never be drafted, which costs a rejection and no correctness (FR-Spec,
arXiv 2502.14856).

The folder `data` holds the lists, counted by `benchmarks/count_tokens.py`; its README says from what.
"""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.models.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent / "data"


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return a hash of the vocabulary's ordinary tokens, in order: equal where a list may be used.

    Special tokens stand after the ordinary ones and differ between models of one family; they are left out.
    """
    special = set(tokenizer.special_tokens.values())
    first_special = min(special, default=tokenizer.num_real_tokens)
    ordinary = tokenizer.token_strings[: min(first_special, tokenizer.num_real_tokens)]
    return hashlib.sha256("\n".join(ordinary).encode("utf-8", "surrogatepass")).hexdigest()


def frequent_tokens(tokenizer: Tokenizer, size: int | None = None) -> NDArray[np.uint32] | None:
    """Return the ids that a draft model's output layer should keep, uint32, rising; none where no list fits.

    All special tokens are among them: the end of an answer must be draftable.

    Args:
        tokenizer: of the draft model.
        size: take only so many of the list's tokens, the most frequent ones; none takes all.
    """
    ranked = _lists().get(fingerprint(tokenizer))
    if ranked is None:
        return None
    special = [i for i in tokenizer.special_tokens.values() if i < tokenizer.num_real_tokens]
    return np.unique(np.concatenate([ranked[:size], np.asarray(special, np.uint32)])).astype(np.uint32)


@cache
def _lists() -> dict[str, NDArray[np.uint32]]:
    """Return the shipped lists, each in falling order of frequency, by their vocabulary's fingerprint."""
    lists = {}
    for path in sorted(FOLDER.glob("*.npz")):
        with np.load(path) as arrays:
            lists[str(arrays["fingerprint"])] = arrays["token_ids"].astype(np.uint32)
    return lists
