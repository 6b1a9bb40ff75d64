"""Tensors as they lie in a mapped file, whatever its format, and reading them as float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.kernels.dequantize import SUPPORTED_TYPES, dequantize


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file; its bytes stay in the map until they are decoded."""

    name: str
    shape: tuple[int, ...]
    """Row-major: [out, in] for a matrix (GGUF itself writes the sizes the other way round)."""
    type: str
    """Name of the tensor type, such as "Q4_K"."""
    data: NDArray[np.uint8]
    """uint8 [num_bytes], a view of the map."""

    def read(self, out: NDArray[np.float32]) -> None:
        """Decode into contiguous float32 memory of this shape."""
        dequantize(self.type, self.data, self.shape, out)

    def read_rows(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """Decode some rows of a matrix: float32 [len(rows), in].

        Raises:
            IndexError: there is no such row.
        """
        block = SUPPORTED_TYPES[self.type]
        by_row = self.data.reshape(-1, self.shape[-1] // block.elements * block.num_bytes)
        return dequantize(self.type, by_row[list(rows)].reshape(-1), (len(rows), self.shape[-1]))


@dataclass(frozen=True, slots=True)
class TensorSource:
    """A model's tensors under GGUF's names (`blk.0.attn_q.weight`), whatever the file's own are."""

    where: str
    """The file or folder, for error messages."""
    tensors: Mapping[str, TensorInfo]
