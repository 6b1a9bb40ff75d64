"""GGUF's block formats to float32: native code, and `gguf.quants` where it was not built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import gguf
import numpy as np
from numpy.typing import NDArray

from paceline.kernels.native import native
from paceline.kernels.threads import num_threads


@dataclass(frozen=True, slots=True)
class BlockSize:
    """How a tensor type cuts a row."""

    elements: int
    """Values in a block."""
    num_bytes: int
    """Bytes of a block."""


SUPPORTED_TYPES: dict[str, BlockSize] = {
    name: BlockSize(*gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]])
    for name in (
        *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"),
        *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    )
}


def dequantize(
    tensor_type: str,
    data: NDArray[np.uint8],
    shape: Sequence[int],
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Decode a tensor's bytes.

    Args:
        tensor_type: one of `SUPPORTED_TYPES`.
        data: uint8 [num_bytes], contiguous.
        shape: of the result, rows last; the last size is a multiple of the type's block.
        out: contiguous float32 of that shape to write to; none makes a new one.

    Returns:
        float32 [*shape], equal to `gguf.quants.dequantize` bit for bit.

    Raises:
        ValueError: an unknown type, or sizes that do not agree.
    """
    block = SUPPORTED_TYPES.get(tensor_type)
    if block is None:
        raise ValueError(f"unknown tensor type {tensor_type}; known: {', '.join(SUPPORTED_TYPES)}")
    result = np.empty(shape, np.float32) if out is None else out
    if result.shape != tuple(shape) or data.size * block.elements != result.size * block.num_bytes:
        raise ValueError(f"{data.size} bytes of {tensor_type} do not fill {tuple(shape)}")
    if native is not None:
        native.dequantize(tensor_type, data, result.reshape(-1, copy=False), num_threads())
    else:
        result[...] = dequantize_reference(tensor_type, data, shape)
    return result


def dequantize_reference(
    tensor_type: str, data: NDArray[np.uint8], shape: Sequence[int]
) -> NDArray[np.float32]:
    """Decode as `dequantize` does, by `gguf.quants`, which is what the formats are checked against."""
    block = SUPPORTED_TYPES[tensor_type]
    rows = data.reshape(-1, shape[-1] // block.elements * block.num_bytes)
    values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[tensor_type])
    return np.ascontiguousarray(values, np.float32).reshape(shape)
