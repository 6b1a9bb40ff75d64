"""Quantised activations: scales, sums for the kernels, equal bits on every instruction set."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.kernels import _native
from paceline.kernels.activations import dequantise, quantise


@pytest.fixture(params=_native.isas(), autouse=True)
def _isa(request: pytest.FixtureRequest) -> Iterator[None]:
    before = _native.isa()
    _native.set_isa(request.param)
    yield
    _native.set_isa(before)


def rows(num_rows: int, num_inputs: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(num_inputs)
    magnitudes = np.exp2(rng.uniform(-20, 20, (num_rows, num_inputs // 32, 1)))
    x = rng.standard_normal((num_rows, num_inputs // 32, 32)) * magnitudes
    return x.reshape(num_rows, num_inputs).astype(np.float32)


@pytest.mark.parametrize("num_inputs", [32, 64, 96, 576, 640, 8960])
def test_values_are_within_half_a_step(num_inputs: int) -> None:
    x = rows(5, num_inputs)
    groups = quantise(x)
    real = groups[:, : num_inputs // 32]
    largest = np.abs(x).reshape(5, -1, 32).max(2)
    assert (real["scale"].view(np.uint32) % 4 == 0).all()  # so that it times magic is exact
    assert (np.abs(real["q"].astype(int)).max(2) == 127).all()
    assert np.allclose(largest / 127, real["scale"], rtol=2**-20, atol=0)
    steps = np.repeat(real["scale"], 32, axis=1).astype(np.float64)
    errors = np.abs(dequantise(groups, num_inputs) - x.astype(np.float64))
    assert (errors <= steps * (0.5 + 127 * 2**-22)).all()


def test_sums_and_starts_follow_from_the_values() -> None:
    groups = quantise(rows(4, 96))
    q = groups["q"].astype(np.int64).reshape(4, 4, 2, 16)
    assert (q[:, 3] == 0).all()  # padding
    halves = q.sum(3)
    magic = int(np.float32(1.5 * 2**23).view(np.int32))
    assert (groups["scaled_magic"] == 1.5 * 2**23 * groups["scale"].astype(np.float64)).all()
    assert (groups["sum"] == groups["scale"] * halves.sum(2).astype(np.float32)).all()
    assert (groups["start16"] == magic - 128 * halves).all()
    assert (groups["start32"] == magic - 128 * halves.sum(2)).all()
    pairs = q.reshape(4, 4, 2, 4, 2, 2).sum((3, 5))
    assert (groups["start_pairs"] == -32 * pairs).all()


def test_every_instruction_set_gives_the_same_bytes() -> None:
    x = rows(3, 640)
    x[0, :32] = 0
    x[1, :32] = np.float32(1e-42)
    x[2, 7] = np.nan
    x[2, 40] = -np.inf
    x[2, 70] = np.float32(3e38)
    ours = quantise(x)
    _native.set_isa("portable")
    assert ours.tobytes() == quantise(x).tobytes()


def test_ties_go_to_even() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    assert quantise(x)["q"][0, 0, :6].tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize(
    ("largest", "scale"),
    [(127.0, 1.0), (254.0, 2.0), (127.0 * 2**100, 2.0**100), (127.0 * 2**-100, 2.0**-100), (0.0, 2.0**-100)],
)
def test_the_largest_value_is_127_steps(largest: float, scale: float) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 31] = -largest
    groups = quantise(x)
    assert groups["scale"][0, 0] == scale
    assert groups["q"][0, 0, 31] == (-127 if largest else 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_group_that_cannot_be_held_says_so(value: float) -> None:
    x = np.ones((1, 64), np.float32)
    x[0, 40] = value
    groups = quantise(x)
    assert np.isnan(groups["scale"][0]).tolist() == [False, True]
    assert np.isnan(groups["scaled_magic"][0, 1])
    assert np.isnan(groups["sum"][0, 1])


def test_a_row_does_not_depend_on_its_neighbours_or_the_threads() -> None:
    x = rows(33, 96)
    together = quantise(x)
    count = _native.num_threads()
    _native.set_num_threads(3)
    assert quantise(x).tobytes() == together.tobytes()
    _native.set_num_threads(count)
    for row in range(33):
        assert quantise(x[row : row + 1]).tobytes() == together[row].tobytes()


@pytest.mark.parametrize("num_rows", [*range(1, 34), 64, 128, 512])
def test_any_number_of_rows(num_rows: int) -> None:
    x = rows(512, 96)
    assert quantise(x[:num_rows]).tobytes() == quantise(x)[:num_rows].tobytes()


def test_no_rows_are_no_work() -> None:
    assert quantise(np.empty((0, 96), np.float32)).shape == (0, 4)


def test_rows_that_are_not_whole_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 48 values are not whole groups of 32"):
        quantise(np.zeros((1, 48), np.float32))
