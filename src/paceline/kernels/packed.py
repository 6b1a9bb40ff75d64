"""Linear layers on packed weights: each weight is read once for all rows, with the numbers of its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import _native
from paceline.kernels.activations import ACTIVATION_GROUP, as_bytes, quantise

PACKED_FORMATS = ("Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Formats of packed weights, each of the tensor type of its name."""

TRANSCODED_TYPES = {"IQ4_NL": "Q8_0", "Q3_K": "Q6_K"}
"""Tensor types that are packed in another's format, which takes more bytes, with the same values."""

REQUANTISED_FORMATS = ("Q8_0", "Q4_0", "Q4_1")
"""Formats that any known tensor type can be re-quantised to, on request."""

BLOCK_ROWS = 16
"""Output rows that packed weights hold side by side; a last block that is not full takes as much."""
UNITS = {
    "Q4_K": (256, 2304), "Q5_K": (256, 2816), "Q6_K": (256, 3392), "Q4_0": (64, 576), "Q4_1": (64, 640),
    "Q5_0": (64, 704), "Q5_1": (64, 768), "Q8_0": (64, 1088),
}  # fmt: skip
"""(inputs, bytes) of a unit of a block, by format, as `native/layout.h` lays them out."""


def packed_bytes(packed_format: str, num_rows: int, num_inputs: int) -> int:
    """Return the bytes that a matrix [num_rows, num_inputs] takes once packed: `PackedLinear.nbytes`.

    Raises:
        KeyError: there is no such format.
    """
    unit_inputs, unit_bytes = UNITS[packed_format]
    return -(-num_rows // BLOCK_ROWS) * -(-num_inputs // unit_inputs) * unit_bytes


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as a file has it, or chosen rows of it."""

    tensor_type: str
    """A type of `paceline.kernels.dequantize.SUPPORTED_TYPES`."""
    data: NDArray[np.uint8]
    """uint8 [num_bytes], contiguous; a view of the memory-mapped file will do, it is not kept."""
    packed_format: str = ""
    """One of `REQUANTISED_FORMATS`, for a model whose numbers may change; if empty, one that keeps them."""
    row_ids: NDArray[np.uint32] | None = None
    """The rows to pack, in this order: a reduced output layer packs its token ids. None packs all."""


class PackedLinear:
    """Immutable packed weights of one or several matrices that share their inputs."""

    def __init__(self, matrices: Sequence[Matrix], num_inputs: int, *, interleave: bool = False) -> None:
        """Pack `matrices` on the native pool.

        Output rows follow each other matrix by matrix; with `interleave`, 16 rows of the first, 16 of the
        second, 16 of the first, and so on, so that a gate and what it gates lie side by side.

        Args:
            matrices: each [rows, num_inputs]; each but the last has a multiple of 16 rows. They may differ
                in type.
            num_inputs: a multiple of 32, and of 256 for K-quants.
            interleave: matrices have equally many rows, a multiple of 16.

        Raises:
            ValueError: shapes, types or row ids that do not fit.
        """
        parts = [(m.tensor_type, m.data, m.packed_format, m.row_ids) for m in matrices]
        self._native = _native.Packed(parts, num_inputs, interleave)

    @property
    def num_inputs(self) -> int:
        """Inputs of a row."""
        return self._native.num_inputs

    @property
    def num_outputs(self) -> int:
        """Output rows of all matrices together."""
        return self._native.num_outputs

    @property
    def nbytes(self) -> int:
        """Bytes that the weights take, and that a pass reads."""
        return self._native.nbytes

    @property
    def native(self) -> _native.Packed:
        """What native code takes."""
        return self._native

    def unpack(self) -> NDArray[np.float32]:
        """Return the weights, float32 [num_outputs, num_inputs], equal to dequantising the file's rows."""
        weights = np.empty((self.num_outputs, self.num_inputs), np.float32)
        self._native.unpack(weights)
        return weights

    def linear(
        self,
        x: NDArray[np.float32] | NDArray[np.void],
        bias: NDArray[np.float32] | None = None,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Multiply rows by the weights' transpose: int8 activations, float32 sums over groups of 32 inputs.

        A row's result has the same bits for any number of rows, neighbours, threads.

        Args:
            x: float32 [rows, num_inputs], or what `paceline.kernels.activations.quantise` made of it.
            bias: float32 [num_outputs], added last.
            out: contiguous float32 [rows, num_outputs] to write to; none makes a new one.

        Returns:
            float32 [rows, num_outputs].

        Raises:
            ValueError: sizes that do not agree.
        """
        if x.dtype == ACTIVATION_GROUP:
            groups = cast("NDArray[np.void]", x)
        else:
            groups = quantise(cast("NDArray[np.float32]", x))
        y = np.empty((len(groups), self.num_outputs), np.float32) if out is None else out
        self._native.linear(as_bytes(groups), bias, y)
        return y
