"""Partial selection keeps exactly what a full stable sort keeps."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sampling.selection import greatest, nucleus

TIED = st.lists(st.sampled_from([-np.inf, -30.0, -3.0, -1.0, -0.5, 0.0]), min_size=1, max_size=40)
LOOSE = st.lists(st.floats(-50, 0), min_size=1, max_size=40)


def full_order(values: np.ndarray) -> np.ndarray:
    return np.lexsort((np.arange(len(values)), -values))


def nucleus_by_full_sort(scores: np.ndarray, top_p: float) -> list[int]:
    order = full_order(scores)
    reached = np.cumsum(np.exp(scores[order])) >= top_p * np.exp(scores).sum()
    count = int(reached.argmax()) + 1 if reached.any() else len(scores)
    return sorted(order[:count].tolist())


@settings(max_examples=300, deadline=None)
@given(values=st.one_of(TIED, LOOSE), count=st.integers(1, 45))
def test_greatest_equals_a_full_sort(values: list[float], count: int) -> None:
    array = np.array(values)
    assert greatest(array, count).tolist() == sorted(full_order(array)[:count].tolist())


@settings(max_examples=500, deadline=None)
@given(values=st.one_of(TIED, LOOSE), top_p=st.floats(1e-9, 1.0, exclude_max=True))
def test_nucleus_equals_a_full_sort(values: list[float], top_p: float) -> None:
    scores = np.array(values)
    scores -= scores.max() if np.isfinite(scores.max()) else 0.0
    scores[0] = max(scores[0], 0.0)
    assert nucleus(scores, top_p).tolist() == nucleus_by_full_sort(scores, top_p)


def test_nucleus_of_whole_vocabularies_equals_a_full_sort() -> None:
    """Flat and peaked rows, so that every candidate bound comes to be the one that suffices."""
    rng = np.random.default_rng(3)
    for spread in (0.0, 0.1, 1.0, 3.0, 8.0, 30.0):
        for top_p in (0.05, 0.5, 0.95, 0.9999, 1 - 1e-12):
            scores = np.round(rng.normal(0, spread, 20_000), 2)  # rounded: many ties
            scores -= scores.max()
            assert nucleus(scores, top_p).tolist() == nucleus_by_full_sort(scores, top_p)


def test_the_token_that_crosses_is_kept() -> None:
    scores = np.log([0.25, 0.5, 0.125, 0.125]) - np.log(0.5)
    assert nucleus(scores, 0.5).tolist() == [1]
    assert nucleus(scores, 0.51).tolist() == [0, 1]
    assert nucleus(scores, 0.75).tolist() == [0, 1]
    assert nucleus(scores, 0.8).tolist() == [0, 1, 2]
    assert nucleus(scores, 0.9).tolist() == [0, 1, 2, 3]
