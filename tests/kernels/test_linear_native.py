"""Native linear layers against dequantised weights times dequantised activations, in float64."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.weights import EXACT_TYPES, HALVES, extreme_weights, random_weights
from paceline.kernels import _native
from paceline.kernels.activations import dequantise, quantise
from paceline.kernels.dequantize import SUPPORTED_TYPES, dequantize
from paceline.kernels.packed import PACKED_FORMATS, Matrix, PackedLinear

ROW_COUNTS = [*range(1, 34), 64, 128, 512]


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = _native.num_threads()
    _native.set_num_threads(2)
    yield
    _native.set_num_threads(before)


def inputs_of(tensor_type: str) -> list[int]:
    return [256, 768, 1536] if tensor_type.endswith("_K") else [32, 64, 96, 576, 640, 1056]


def activations(num_rows: int, num_inputs: int, seed: int = 1) -> NDArray[np.float32]:
    """Rows of different sizes, some values far out, and the third row all zeros."""
    rng = np.random.default_rng([seed, num_inputs])
    x = rng.standard_normal((num_rows, num_inputs)) * np.exp2(rng.uniform(-6, 6, (num_rows, 1)))
    x[rng.random(x.shape) < 0.01] *= 40
    x[2:3] = 0
    return x.astype(np.float32)


def assert_close(y: NDArray[np.float32], weights: NDArray[np.float32], x: NDArray[np.float32]) -> None:
    """The sums' only error is float32 rounding: far below 1e-5 of the sum of magnitudes."""
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    magnitudes = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T
    assert (np.abs(y - exact) <= 1e-6 * magnitudes).all()


@pytest.mark.parametrize("tensor_type", EXACT_TYPES)
def test_every_shape_and_number_of_rows(tensor_type: str, isa: str) -> None:
    for num_inputs in inputs_of(tensor_type):
        for num_outputs in (1, 16, 45):
            data = random_weights(tensor_type, num_outputs, num_inputs)
            weights = dequantize(tensor_type, data, (num_outputs, num_inputs))
            packed = PackedLinear([Matrix(tensor_type, data)], num_inputs)
            x = activations(33, num_inputs)
            y = packed.linear(x)
            assert y.shape == (33, num_outputs)
            assert_close(y, weights, dequantise(quantise(x), num_inputs))
            assert (y[2] == 0).all()
            for count in range(1, 33):
                assert packed.linear(x[:count]).tobytes() == y[:count].tobytes()


@pytest.mark.parametrize("tensor_type", EXACT_TYPES)
def test_a_row_is_bit_equal_for_any_number_of_rows_and_any_neighbours(tensor_type: str, isa: str) -> None:
    num_inputs, num_outputs = 768, 56
    packed = PackedLinear(
        [Matrix(tensor_type, random_weights(tensor_type, num_outputs, num_inputs))], num_inputs
    )
    x = activations(512, num_inputs)
    together = packed.linear(x)
    for count in ROW_COUNTS:
        assert packed.linear(x[:count]).tobytes() == together[:count].tobytes()
        assert packed.linear(x[512 - count :]).tobytes() == together[512 - count :].tobytes()


@pytest.mark.parametrize("tensor_type", EXACT_TYPES)
@pytest.mark.parametrize("num_rows", [1, 4, 40])
def test_results_do_not_depend_on_the_number_of_threads(tensor_type: str, num_rows: int, isa: str) -> None:
    num_inputs, num_outputs = 512, 1000
    packed = PackedLinear(
        [Matrix(tensor_type, random_weights(tensor_type, num_outputs, num_inputs))], num_inputs
    )
    x = activations(num_rows, num_inputs)
    expected = packed.linear(x)
    for count in (1, 3, 7):
        _native.set_num_threads(count)
        assert packed.linear(x).tobytes() == expected.tobytes()


@pytest.mark.parametrize("tensor_type", EXACT_TYPES)
def test_vector_instruction_sets_agree_to_the_bit(tensor_type: str) -> None:
    packed = PackedLinear([Matrix(tensor_type, random_weights(tensor_type, 48, 768))], 768)
    x = activations(20, 768)
    before = _native.isa()
    results = set()
    for name in _native.isas():
        if name != "portable":  # which has no fused multiply-add
            _native.set_isa(name)
            results.add(packed.linear(x).tobytes())
    _native.set_isa(before)
    assert len(results) <= 1


@pytest.mark.parametrize("tensor_type", EXACT_TYPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_values(tensor_type: str, sign: int, isa: str) -> None:
    num_inputs, num_outputs = 1024, 34
    data = extreme_weights(tensor_type, num_outputs, num_inputs)
    weights = dequantize(tensor_type, data, (num_outputs, num_inputs))
    packed = PackedLinear([Matrix(tensor_type, data)], num_inputs)
    x = np.full((10, num_inputs), sign * 127 * 2.0**20, np.float32)
    x[5:, ::2] *= -1
    for count in (1, 3, 8, 10):
        assert_close(packed.linear(x[:count]), weights, x[:count])


def test_a_row_with_a_nan_gives_nan_and_spares_its_neighbours(isa: str) -> None:
    for tensor_type in EXACT_TYPES:
        packed = PackedLinear([Matrix(tensor_type, random_weights(tensor_type, 20, 512))], 512)
        x = activations(12, 512)
        clean = packed.linear(x)
        x[4, 300] = np.nan
        for count in (5, 12):
            y = packed.linear(x[:count])
            assert np.isnan(y[4]).all()
            assert np.delete(y, 4, 0).tobytes() == np.delete(clean[:count], 4, 0).tobytes()


@pytest.mark.parametrize("tensor_type", PACKED_FORMATS)
def test_tiny_weights_and_tiny_activations(tensor_type: str, isa: str) -> None:
    """Scales below the smallest normal half, and rows down to the smallest float: nothing is flushed to zero
    but what no scale of activations reaches."""
    num_inputs, num_outputs = 256, 21
    data = random_weights(tensor_type, num_outputs, num_inputs)
    blocks = data.reshape(-1, SUPPORTED_TYPES[tensor_type].num_bytes)
    for start in HALVES[tensor_type]:
        blocks[:, start + 1] &= 0x83  # an exponent of zero, so that what is left of the fraction is subnormal
    weights = dequantize(tensor_type, data, (num_outputs, num_inputs))
    assert 0 < np.abs(weights).max() < 0.3
    packed = PackedLinear([Matrix(tensor_type, data)], num_inputs)
    x = activations(19, num_inputs)
    x[0::4] *= np.float32(1e-20)
    x[1::4] = np.float32(1e-45)
    assert_close(packed.linear(x), weights, dequantise(quantise(x), num_inputs))
    for count in (1, 8):
        assert packed.linear(x[:count]).tobytes() == packed.linear(x)[:count].tobytes()
    assert (packed.linear(x)[1::4] == 0).all()


@pytest.mark.parametrize("tensor_type", PACKED_FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_scale_that_is_not_a_number_spoils_its_own_output_alone(
    tensor_type: str, value: float, isa: str
) -> None:
    num_inputs, num_outputs = 512, 20
    data = random_weights(tensor_type, num_outputs, num_inputs)
    x = activations(12, num_inputs)
    clean = PackedLinear([Matrix(tensor_type, data)], num_inputs).linear(x)
    start = HALVES[tensor_type][0]
    by_row = data.reshape(num_outputs, -1)
    by_row[5, start : start + 2] = np.array([value], np.float16).view(np.uint8)
    packed = PackedLinear([Matrix(tensor_type, data)], num_inputs)
    for count in (1, 8, 12):
        y = packed.linear(x[:count])
        assert not np.isfinite(y[:, 5]).any()
        assert np.delete(y, 5, 1).tobytes() == np.delete(clean[:count], 5, 1).tobytes()


@pytest.mark.parametrize("tensor_type", PACKED_FORMATS)
def test_no_rows_are_no_work(tensor_type: str, isa: str) -> None:
    packed = PackedLinear([Matrix(tensor_type, random_weights(tensor_type, 20, 256))], 256)
    assert packed.linear(np.empty((0, 256), np.float32)).shape == (0, 20)


@pytest.mark.parametrize("num_rows", [1, 12])
def test_bias_is_added_last(num_rows: int, isa: str) -> None:
    packed = PackedLinear([Matrix("Q4_K", random_weights("Q4_K", 37, 256))], 256)
    x = activations(num_rows, 256)
    bias = np.random.default_rng(3).standard_normal(37).astype(np.float32)
    assert packed.linear(x, bias).tobytes() == (packed.linear(x) + bias).tobytes()


@pytest.mark.parametrize("num_rows", [2, 20])
def test_an_output_given_is_written_in_place(num_rows: int) -> None:
    packed = PackedLinear([Matrix("Q4_0", random_weights("Q4_0", 37, 64))], 64)
    x = activations(num_rows, 64)
    out = np.full((num_rows, 37), np.nan, np.float32)
    assert packed.linear(quantise(x), out=out) is out
    assert out.tobytes() == packed.linear(x).tobytes()


def test_sizes_that_do_not_agree_are_refused() -> None:
    packed = PackedLinear([Matrix("Q4_0", random_weights("Q4_0", 32, 64))], 64)
    with pytest.raises(ValueError, match=r"rows of 256 bytes are not the groups of 64 inputs"):
        packed.linear(np.zeros((1, 128), np.float32))
    with pytest.raises(ValueError, match=r"outputs are \[1, 31\], expected \[1, 32\]"):
        packed.linear(np.zeros((1, 64), np.float32), out=np.zeros((1, 31), np.float32))
    with pytest.raises(ValueError, match="a bias of 31 values for 32 outputs"):
        packed.linear(np.zeros((1, 64), np.float32), np.zeros(31, np.float32))
