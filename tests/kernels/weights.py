"""Random bytes that are valid tensors of each block format."""

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.dequantize import SUPPORTED_TYPES, dequantize_reference
from paceline.kernels.packed import PACKED_FORMATS, TRANSCODED_TYPES

EXACT_TYPES = (*PACKED_FORMATS, *TRANSCODED_TYPES)
"""Tensor types that native kernels take with the values that they have."""

HALVES = {
    "F16": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
}
"""Where a block's half-precision numbers lie; every other byte may have any value."""


def random_weights(tensor_type: str, num_rows: int, num_inputs: int, seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng([seed, num_rows, num_inputs])
    block = SUPPORTED_TYPES[tensor_type]
    num_blocks = num_rows * num_inputs // block.elements
    blocks = rng.integers(0, 256, (num_blocks, block.num_bytes), dtype=np.uint8)
    for start in HALVES[tensor_type]:
        halves = (0.01 * rng.standard_normal(num_blocks)).astype(np.float16)
        blocks[:, start : start + 2] = halves.view(np.uint8).reshape(num_blocks, 2)
    return blocks.reshape(-1)


def extreme_weights(tensor_type: str, num_rows: int, num_inputs: int) -> NDArray[np.uint8]:
    """Every quant and scale at the end of its range, in blocks that alternate between the two ends."""
    block = SUPPORTED_TYPES[tensor_type]
    num_blocks = num_rows * num_inputs // block.elements
    blocks = np.empty((num_blocks, block.num_bytes), np.uint8)
    blocks[0::2], blocks[1::2] = 0, 255
    if tensor_type == "Q8_0":
        blocks[0::2], blocks[1::2] = 0x80, 0x7F  # the most negative and the most positive quant
    for start in HALVES[tensor_type]:
        blocks[:, start : start + 2] = np.array([60000.0], np.float16).view(np.uint8)
    return blocks.reshape(-1)


def sized_weights(
    tensor_type: str, shape: tuple[int, int], deviation: float, seed: int = 0
) -> NDArray[np.uint8]:
    """Random blocks whose values have this standard deviation and nearly no mean, for whole models."""
    rng = np.random.default_rng([seed, *shape])
    block = SUPPORTED_TYPES[tensor_type]
    num_blocks = shape[0] * shape[1] // block.elements
    blocks = rng.integers(0, 256, (num_blocks, block.num_bytes), dtype=np.uint8)
    places = HALVES[tensor_type]

    def set_halves(*numbers: float) -> NDArray[np.float32]:
        for start, number in zip(places, numbers, strict=False):
            blocks[:, start : start + 2] = np.array([number], np.float16).view(np.uint8)
        return dequantize_reference(tensor_type, blocks.reshape(-1), shape)

    # A value is a scale times something, plus or less a minimum times something else.
    scaled, minimum = set_halves(1.0, 0.0).mean(), set_halves(0.0, 1.0).mean() if places[1:] else 1.0
    ratio = float(-scaled / minimum)
    unit = deviation / float(set_halves(1.0, ratio).std())
    set_halves(unit, unit * ratio)
    return blocks.reshape(-1)
