"""Angles of the rotary embedding, computed once for each position."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.kernels.reference import rotary_frequencies, rotary_periods
from paceline.models.decoder_config import Rotary

_CHUNK = 512


def frequencies_of(rotary: Rotary, head_dim: int, factors: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Return float32 [head_dim / 2], divided by `factors` of that shape if the file has such a tensor."""
    if rotary.scaling is None:
        return rotary_frequencies(head_dim, rotary.base, rotary.linear_factor, factors)
    periods = rotary_periods(head_dim, rotary.base)
    return rotary.scaling.frequencies(periods if factors is None else periods * factors, rotary.base)


class RotaryTable:
    """cos and sin of position x frequency, times the attention factor, grown in chunks as needed."""

    def __init__(
        self, rotary: Rotary, head_dim: int, factors: NDArray[np.float32] | None, device: torch.device
    ) -> None:
        """Take `factors` [head_dim / 2] as `frequencies_of` does."""
        self._frequencies = frequencies_of(rotary, head_dim, factors)
        self._attention_factor = np.float32(rotary.attention_factor)
        self._device = device
        self._cos = torch.empty(0, head_dim // 2, device=device)
        self._sin = self._cos

    def at(self, positions: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin for int64 [num_rows] positions: float32 [num_rows, 1, head_dim / 2] each.

        Args:
            positions: on the table's device.
            end: a number above all of them, known here without asking the device.
        """
        while self._cos.shape[0] < end:
            self._grow()
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)

    def _grow(self) -> None:
        start = self._cos.shape[0]
        positions = np.arange(start, start + _CHUNK, dtype=np.float32)
        angles = np.outer(positions, self._frequencies).astype(np.float64)
        cos, sin = (
            torch.from_numpy(turn(angles).astype(np.float32) * self._attention_factor).to(self._device)
            for turn in (np.cos, np.sin)
        )
        self._cos, self._sin = torch.cat((self._cos, cos)), torch.cat((self._sin, sin))
