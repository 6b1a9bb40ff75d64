"""Ratios of paired measurements, and whether their intervals hold what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.measure.paired import Pair, Ratio, Scatter, geometric_mean, single_ratios


def pair(one: float, other: float, tokens: float = 10.0) -> Pair:
    """Of the seconds on both sides."""
    return (tokens, one), (tokens, other)


def test_a_ratio_is_a_geometric_mean_with_an_interval() -> None:
    assert Ratio.of([]) is None
    alone = Ratio.of([1.5])
    assert alone == Ratio(pytest.approx(1.5), None, None)  # type: ignore[arg-type]
    ratio = Ratio.of([1.0, 1.21])
    assert ratio is not None
    assert ratio.mean == pytest.approx(1.1)
    # Two logarithms 0.1906 apart: sd 0.1348, of the mean 0.0953, times 12.71.
    assert ratio.high == pytest.approx(1.1 * math.exp(12.71 * math.log(1.21) / 2), rel=1e-3)


def test_scatter_is_pooled_over_cells() -> None:
    assert Scatter.of([]) is None
    assert Scatter.of([[[1.2]], [[0.9], [1.1]]]) is None
    # Pairs 0.2 and 0.1 apart in their logarithms: variances 0.02 and 0.005, of one degree of freedom each.
    wide, narrow = [1.0, math.exp(0.2)], [2.0, 2.0 * math.exp(0.1)]
    scatter = Scatter.of([[wide], [narrow], [[1.0]]])
    assert scatter is not None
    assert scatter.freedom == 2
    assert scatter.deviation == pytest.approx(math.sqrt(0.0125))
    # Settings of one cell share their plain runs: their mean counts, as one.
    assert Scatter.of([[wide, narrow]]) == Scatter(pytest.approx(math.sqrt(0.0125)), 1)  # type: ignore[arg-type]
    alone = Ratio.of([1.5], scatter)
    assert alone is not None
    assert alone.high == pytest.approx(1.5 * math.exp(4.30 * math.sqrt(0.0125)))
    assert alone.low == pytest.approx(1.5 * math.exp(-4.30 * math.sqrt(0.0125)))


def test_intervals_hold_what_they_say() -> None:
    # Of cells whose scatter is the same, 95 % of the intervals have the true ratio in them.
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        cells = [np.exp(rng.normal(0.1, 0.08, 2)).tolist() for _ in range(6)]
        scatter = Scatter.of([[cell] for cell in cells])
        ratios = [Ratio.of(cell, scatter) for cell in cells]
        held += sum(one.low <= math.exp(0.1) <= one.high for one in ratios if one and one.low and one.high)
    assert 0.93 <= held / 1800 <= 0.97


def test_long_pairs_count_for_more_in_a_ratio_of_sums() -> None:
    found = Ratio.of_sums([pair(1, 1), pair(1, 1), pair(1, 1), pair(1, 1), pair(6, 16)])
    assert found is not None
    assert found.mean == pytest.approx(20 / 10)
    assert found.low is not None
    assert found.low < found.mean


def test_the_interval_of_sums_is_the_jackknife_s() -> None:
    pairs = [pair(2, 3), pair(3, 5), pair(2, 2), pair(4, 7), pair(3, 4)]
    without = [math.log((21 - other[1]) / (14 - one[1])) for one, other in pairs]
    error = math.sqrt(4 / 5 * sum((w - np.mean(without)) ** 2 for w in without))
    found = Ratio.of_sums(pairs)
    assert found is not None
    assert found.mean == pytest.approx(21 / 14)
    assert found.high == pytest.approx(1.5 * math.exp(2.78 * error))
    assert found.low == pytest.approx(1.5 * math.exp(-2.78 * error))


def test_sides_with_other_tokens_are_compared_by_tokens_a_second() -> None:
    found = Ratio.of_sums([((20.0, 2.0), (10.0, 2.0))] * 4)
    assert found == Ratio(*[pytest.approx(2.0)] * 3)  # type: ignore[arg-type]


def test_few_pairs_go_by_the_scatter_that_is_given() -> None:
    scatter = Scatter(0.1, 8)
    found = Ratio.of_sums([pair(1, 2), pair(1, 2)], scatter)
    assert found is not None
    assert found.high == pytest.approx(2 * math.exp(2.31 * 0.1 / math.sqrt(2)))
    four = [pair(1, 2)] * 4
    assert Ratio.of_sums(four, scatter) == Ratio.of_sums(four)
    assert Ratio.of_sums([pair(1, 2)]) == Ratio(pytest.approx(2.0), None, None)  # type: ignore[arg-type]


def test_pairs_without_tokens_or_seconds_say_nothing() -> None:
    empty: Pair = ((0.0, 0.0), (0.0, 0.0))
    assert Ratio.of_sums([empty]) is None
    assert Ratio.of_sums([empty, pair(1, 3)]) == Ratio.of_sums([pair(1, 3)])
    assert single_ratios([empty, pair(1, 3)]) == pytest.approx([3.0])


@pytest.mark.parametrize("count", [4, 6, 16])
def test_intervals_of_sums_hold_what_they_say(count: int) -> None:
    """Slices of different length on a machine whose speed wanders, the same for both sides of a pair but for
    noise. Of 600 intervals 95 % have the true ratio; by chance the share is outside these limits one time in
    a thousand at most."""
    rng = np.random.default_rng(count)
    held = 0
    for _ in range(600):
        lengths = np.exp(rng.normal(0, 0.3, count) + np.cumsum(rng.normal(0, 0.2, count)))
        one, other = (lengths * np.exp(rng.normal(0, 0.1, count)) for _ in range(2))
        found = Ratio.of_sums([pair(a, 1.3 * b) for a, b in zip(one, other, strict=True)])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.3 <= found.high
    assert 0.92 <= held / 600 <= 0.98


def test_cells_without_a_ratio_do_not_count_in_the_mean() -> None:
    assert geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([None]) is None
