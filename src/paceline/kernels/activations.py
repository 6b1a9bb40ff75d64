"""Rows of activations as int8 in groups of 32: the input of the native linear layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import _native

GROUP_INPUTS = 32
"""Inputs that share a scale."""

ACTIVATION_GROUP = np.dtype(
    [
        ("q", np.int8, GROUP_INPUTS),
        ("scale", np.float32),
        ("scaled_magic", np.float32),
        ("sum", np.float32),
        ("start32", np.int32),
        ("start16", np.int32, 2),
        ("start_pairs", np.int16, (2, 2)),
    ]
)
"""One group as `native/activations.h` describes it: input i stands for `scale * q[i]`."""


def quantise(x: NDArray[np.float32]) -> NDArray[np.void]:
    """Quantise rows, each group of 32 by its largest magnitude; a group's bits depend on nothing else.

    Args:
        x: contiguous float32 [rows, inputs], inputs a multiple of 32.

    Returns:
        `ACTIVATION_GROUP` [rows, groups]; the number of groups is even, the last one zeros where it is
        padding. A group with a NaN, an infinity or a magnitude above 127 * 2**100 has a scale of NaN.

    Raises:
        ValueError: inputs are not a multiple of 32.
    """
    num_rows, num_inputs = x.shape
    groups = aligned_groups(num_rows, num_inputs)
    _native.quantise(x, as_bytes(groups))
    return groups


def as_bytes(groups: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return `groups` [rows, groups] as native code takes them: uint8 [rows, groups * 64], no copy."""
    num_rows, num_groups = groups.shape
    return groups.view(np.uint8).reshape(num_rows, num_groups * ACTIVATION_GROUP.itemsize)


def aligned_groups(num_rows: int, num_inputs: int) -> NDArray[np.void]:
    """Return uninitialised `ACTIVATION_GROUP` [num_rows, groups] at a 64-byte boundary."""
    num_groups = (num_inputs + 63) // 64 * 2
    size = num_rows * num_groups * ACTIVATION_GROUP.itemsize
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(ACTIVATION_GROUP).reshape(num_rows, num_groups)


def dequantise(groups: NDArray[np.void], num_inputs: int) -> NDArray[np.float32]:
    """Return the float32 [rows, num_inputs] that `groups` stand for."""
    values = groups["q"].astype(np.float32) * groups["scale"][..., None]
    return np.ascontiguousarray(values.reshape(len(groups), -1)[:, :num_inputs])
