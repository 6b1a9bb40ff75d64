"""Packed weights keep the file's numbers exactly; matrices, chosen rows and re-quantisation go into one."""

import gguf
import numpy as np
import pytest

from kernels.weights import EXACT_TYPES, extreme_weights, random_weights
from paceline.kernels.dequantize import dequantize
from paceline.kernels.packed import (
    PACKED_FORMATS,
    REQUANTISED_FORMATS,
    TRANSCODED_TYPES,
    Matrix,
    PackedLinear,
)


@pytest.mark.parametrize("tensor_type", EXACT_TYPES)
@pytest.mark.parametrize("num_outputs", [1, 15, 16, 17, 70])
def test_unpacking_gives_the_dequantised_file(tensor_type: str, num_outputs: int) -> None:
    for num_inputs in (256, 512, 1280) if tensor_type.endswith("_K") else (32, 64, 96, 640):
        for data in (
            random_weights(tensor_type, num_outputs, num_inputs),
            extreme_weights(tensor_type, num_outputs, num_inputs),
        ):
            packed = PackedLinear([Matrix(tensor_type, data)], num_inputs)
            assert (packed.num_inputs, packed.num_outputs) == (num_inputs, num_outputs)
            expected = dequantize(tensor_type, data, (num_outputs, num_inputs))
            assert packed.unpack().tobytes() == expected.tobytes()


@pytest.mark.parametrize("tensor_type", PACKED_FORMATS)
def test_packing_takes_the_files_bytes_within_one_percent(tensor_type: str) -> None:
    data = random_weights(tensor_type, 64, 1024)
    packed = PackedLinear([Matrix(tensor_type, data)], 1024)
    assert data.nbytes <= packed.nbytes <= 1.01 * data.nbytes


@pytest.mark.parametrize(("tensor_type", "packed_format"), TRANSCODED_TYPES.items())
def test_another_types_format_takes_its_bytes(tensor_type: str, packed_format: str) -> None:
    ours, theirs = (
        PackedLinear([Matrix(name, random_weights(name, 64, 1024))], 1024).nbytes
        for name in (tensor_type, packed_format)
    )
    assert ours == theirs


def test_matrices_of_different_types_follow_each_other() -> None:
    types = {"Q4_K": 32, "Q3_K": 16, "Q6_K": 16, "Q5_K": 16, "IQ4_NL": 16, "Q8_0": 23}
    data = {name: random_weights(name, rows, 256) for name, rows in types.items()}
    packed = PackedLinear([Matrix(name, data[name]) for name in types], 256)
    expected = np.concatenate([dequantize(name, data[name], (rows, 256)) for name, rows in types.items()])
    assert packed.unpack().tobytes() == expected.tobytes()
    x = np.random.default_rng(0).standard_normal((9, 256)).astype(np.float32)
    alone = [PackedLinear([Matrix(name, data[name])], 256).linear(x) for name in types]
    for count in (1, 9):
        assert packed.linear(x[:count]).tobytes() == np.concatenate(alone, axis=1)[:count].tobytes()


def test_interleaved_matrices_alternate_by_16_rows() -> None:
    gate, up = random_weights("Q4_K", 48, 256, seed=1), random_weights("Q6_K", 48, 256, seed=2)
    packed = PackedLinear([Matrix("Q4_K", gate), Matrix("Q6_K", up)], 256, interleave=True)
    rows = packed.unpack().reshape(3, 2, 16, 256)
    assert np.array_equal(rows[:, 0].reshape(48, 256), dequantize("Q4_K", gate, (48, 256)))
    assert np.array_equal(rows[:, 1].reshape(48, 256), dequantize("Q6_K", up, (48, 256)))


@pytest.mark.parametrize("tensor_type", EXACT_TYPES)
def test_chosen_rows_make_a_reduced_output_layer(tensor_type: str) -> None:
    data = random_weights(tensor_type, 100, 256)
    row_ids = np.array([99, 3, 3, 0, 57, *range(20, 40)], np.uint32)
    reduced = PackedLinear([Matrix(tensor_type, data, row_ids=row_ids)], 256)
    whole = PackedLinear([Matrix(tensor_type, data)], 256)
    assert np.array_equal(reduced.unpack(), dequantize(tensor_type, data, (100, 256))[row_ids])
    x = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    assert np.array_equal(reduced.linear(x), whole.linear(x)[:, row_ids])


@pytest.mark.parametrize("packed_format", REQUANTISED_FORMATS)
def test_requantising_is_at_least_as_close_as_gguf(packed_format: str) -> None:
    weights = (np.random.default_rng(5).standard_t(4, (48, 320)) * 0.05).astype(np.float32)
    packed = PackedLinear([Matrix("F32", weights.view(np.uint8).reshape(-1), packed_format)], 320)
    theirs = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[packed_format])
    reference = gguf.quants.dequantize(theirs, gguf.GGMLQuantizationType[packed_format])
    error = np.square(packed.unpack() - weights).mean()
    assert error <= 1.0001 * np.square(reference - weights).mean()


@pytest.mark.parametrize("tensor_type", ["F16", "BF16", "Q2_K", "Q3_K", "Q6_K", "Q5_0", "IQ4_NL"])
def test_any_type_can_be_requantised(tensor_type: str) -> None:
    if tensor_type not in ("F16", "BF16"):
        data = random_weights(tensor_type, 17, 256)
    else:
        values = np.random.default_rng(1).standard_normal((17, 256)).astype(np.float32)
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[tensor_type]).view(np.uint8).reshape(-1)
    exact = dequantize(tensor_type, data, (17, 256))
    weights = PackedLinear([Matrix(tensor_type, data, "Q8_0")], 256).unpack()
    steps = np.abs(exact).reshape(17, 8, 32).max(2).repeat(32, axis=1) / 127
    assert (np.abs(weights - exact) <= 0.51 * steps).all()


@pytest.mark.parametrize("packed_format", REQUANTISED_FORMATS)
def test_zeros_stay_zeros(packed_format: str) -> None:
    data = np.zeros(4 * 64 * 3, np.uint8)
    assert (PackedLinear([Matrix("F32", data, packed_format)], 64).unpack() == 0).all()


def matrix(tensor_type: str, rows: int, inputs: int, **options: object) -> Matrix:
    return Matrix(tensor_type, random_weights(tensor_type, rows, inputs), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("matrices", "num_inputs", "interleave", "message"),
    [
        ([], 64, False, "no matrix to pack"),
        ([Matrix("Q9_Z", np.zeros(64, np.uint8))], 64, False, "unknown tensor type Q9_Z"),
        ([Matrix("F32", np.zeros(1024, np.uint8))], 64, False, "F32 is not a packed format"),
        ([matrix("Q2_K", 16, 256)], 256, False, "Q2_K is not a packed format"),
        ([Matrix("F32", np.zeros(1024, np.uint8), "Q6_K")], 256, False, "F32 cannot be re-quantised to q6_k"),
        ([matrix("Q4_0", 16, 64)], 96, False, "576 bytes of Q4_0 are not rows of 96 inputs"),
        ([matrix("Q4_K", 16, 256)], 128, False, "2304 bytes of Q4_K are not rows of 128 inputs"),
        (
            [matrix("Q4_0", 17, 64), matrix("Q4_0", 16, 64)],
            64,
            False,
            "a matrix of 17 rows is followed by another",
        ),
        (
            [matrix("Q4_0", 16, 64), matrix("Q4_0", 32, 64)],
            64,
            True,
            "interleaved matrices have 16 and 32 rows",
        ),
        (
            [matrix("Q4_0", 20, 64, row_ids=np.array([3, 20], np.uint32))],
            64,
            False,
            "row 20 of a matrix of 20",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    matrices: list[Matrix], num_inputs: int, interleave: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PackedLinear(matrices, num_inputs, interleave=interleave)
