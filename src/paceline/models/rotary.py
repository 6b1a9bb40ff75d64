"""Angles of the rotary embedding, computed once for each position."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.kernels.reference import rotary_frequencies
from paceline.models.decoder_config import Rotary

_CHUNK = 512


def frequencies_of(rotary: Rotary, head_dim: int, factors: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Return float32 [head_dim / 2], divided by `factors`, a tensor of the file, else by the rotary's own."""
    if factors is None and rotary.factors is not None:
        factors = np.asarray(rotary.factors, np.float32)
    return rotary_frequencies(head_dim, rotary.base, rotary.linear_factor, factors)


class RotaryTable:
    """cos and sin of position x frequency, grown in chunks as positions are asked for."""

    def __init__(
        self, rotary: Rotary, head_dim: int, factors: NDArray[np.float32] | None, device: torch.device
    ) -> None:
        """Take the divisors of the frequencies from `factors` [head_dim / 2], else from `rotary`."""
        self._frequencies = frequencies_of(rotary, head_dim, factors)
        self._device = device
        self._cos = torch.empty(0, head_dim // 2, device=device)
        self._sin = self._cos

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin for int64 [num_rows] positions: float32 [num_rows, 1, head_dim / 2] each."""
        needed = int(positions.max()) + 1 if positions.numel() else 0
        while self._cos.shape[0] < needed:
            self._grow()
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    def _grow(self) -> None:
        start = self._cos.shape[0]
        positions = np.arange(start, start + _CHUNK, dtype=np.float32)
        angles = np.outer(positions, self._frequencies).astype(np.float64)
        cos = torch.from_numpy(np.cos(angles).astype(np.float32)).to(self._device)
        sin = torch.from_numpy(np.sin(angles).astype(np.float32)).to(self._device)
        self._cos, self._sin = torch.cat((self._cos, cos)), torch.cat((self._sin, sin))
