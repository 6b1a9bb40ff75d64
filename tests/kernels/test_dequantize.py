"""Native decoding against `gguf.quants`, bit for bit."""

import logging

import gguf
import numpy as np
import pytest

from kernels.weights import HALVES
from paceline.kernels import _native, threads
from paceline.kernels import dequantize as module
from paceline.kernels.dequantize import SUPPORTED_TYPES, dequantize, dequantize_reference
from paceline.kernels.native import load_native


def random_blocks(tensor_type: str, num_blocks: int, seed: int = 0) -> np.ndarray:
    """Return random bytes in which every half-precision number is finite."""
    rng = np.random.default_rng(seed)
    block = SUPPORTED_TYPES[tensor_type]
    if tensor_type in ("F32", "BF16"):
        values = rng.standard_normal(num_blocks).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[tensor_type]).view(np.uint8)
    data = rng.integers(0, 256, (num_blocks, block.num_bytes), dtype=np.uint8)
    for offset in HALVES[tensor_type]:
        halves = rng.integers(0, 0x7C00, num_blocks, dtype=np.uint16)
        halves |= rng.integers(0, 2, num_blocks, dtype=np.uint16) << 15
        data[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    return data.reshape(-1)


@pytest.mark.parametrize("tensor_type", SUPPORTED_TYPES)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_equals_the_reference_bit_for_bit(tensor_type: str, num_threads: int) -> None:
    block = SUPPORTED_TYPES[tensor_type]
    num_blocks = (1 << 20) // block.elements + 1  # enough for threads, and not divisible by them
    data = random_blocks(tensor_type, num_blocks)
    shape = (1, num_blocks * block.elements)
    out = np.empty(shape[1], np.float32)
    _native.dequantize(tensor_type, data, out, num_threads)
    expected = dequantize_reference(tensor_type, data, shape)
    np.testing.assert_array_equal(out.view(np.uint32), expected.reshape(-1).view(np.uint32))


def test_every_half_is_decoded() -> None:
    halves = np.arange(65536, dtype=np.uint16)
    decoded = dequantize("F16", halves.view(np.uint8), (65536,))
    np.testing.assert_array_equal(decoded, halves.view(np.float16).astype(np.float32))  # NaN equals NaN here
    is_number = ~np.isnan(decoded)
    expected = halves.view(np.float16).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(decoded.view(np.uint32)[is_number], expected[is_number])


def test_writes_into_a_part_of_a_fused_matrix() -> None:
    fused = np.zeros((6, 32), np.float32)
    data = random_blocks("Q4_0", 4)
    dequantize("Q4_0", data, (4, 32), out=fused[1:5])
    np.testing.assert_array_equal(fused[1:5], dequantize_reference("Q4_0", data, (4, 32)))
    assert not fused[0].any()
    assert not fused[5].any()


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="17 bytes of Q4_0 do not fill"):
        _native.dequantize("Q4_0", np.zeros(17, np.uint8), np.zeros(32, np.float32), 1)
    with pytest.raises(ValueError, match="18 bytes of Q4_0 do not fill"):
        _native.dequantize("Q4_0", np.zeros(18, np.uint8), np.zeros(33, np.float32), 1)
    with pytest.raises(ValueError, match=r"18 bytes of Q4_0 do not fill \(2, 32\)"):
        dequantize("Q4_0", np.zeros(18, np.uint8), (2, 32))


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown tensor type IQ1_S"):
        _native.dequantize("IQ1_S", np.zeros(18, np.uint8), np.zeros(32, np.float32), 1)
    with pytest.raises(ValueError, match="unknown tensor type IQ1_S; known: F32"):
        dequantize("IQ1_S", np.zeros(18, np.uint8), (32,))


def test_dtypes_and_strides_are_checked_at_the_door() -> None:
    with pytest.raises(TypeError):
        _native.dequantize("F32", np.zeros(4, np.int8), np.zeros(1, np.float32), 1)
    with pytest.raises(TypeError):
        _native.dequantize("F32", np.zeros(4, np.uint8), np.zeros(1, np.float64), 1)
    with pytest.raises(TypeError):
        _native.dequantize("F32", np.zeros(16, np.uint8)[::2], np.zeros(2, np.float32), 1)


def test_without_native_code_the_reference_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = random_blocks("Q6_K", 3)
    expected = dequantize("Q6_K", data, (3, 256))
    monkeypatch.setitem(__import__("sys").modules, "paceline.kernels._native", None)
    monkeypatch.delattr("paceline.kernels._native")
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(module, "native", load_native())
    assert module.native is None
    assert "native kernels are not available" in caplog.text
    np.testing.assert_array_equal(dequantize("Q6_K", data, (3, 256)), expected)


def test_thread_setting_is_used() -> None:
    threads.set_num_threads(2)
    try:
        data = random_blocks("Q8_0", 100)
        np.testing.assert_array_equal(
            dequantize("Q8_0", data, (100, 32)), dequantize_reference("Q8_0", data, (100, 32))
        )
    finally:
        threads.set_num_threads(None)
