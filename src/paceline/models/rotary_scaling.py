"""How models made for a short context turn positions of a long one: what the readers of files fill in.

Linear scaling (Chen et al. 2023, arXiv 2306.15595) is one number of `Rotary`. YaRN (Peng et al. 2023, arXiv
2309.00071) and Llama 3 mix scaled and unscaled frequencies. Formulas, defaults and the order of roundings are
those of `transformers` 5, which the tests compare with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Yarn:
    """Frequencies that turn often within the original length stay, those that turn seldom are divided."""

    factor: float
    """How many times the original length the model is to cover."""
    original_length: float
    """Positions that the model was first trained on."""
    beta_fast: float = 32.0
    """Turns within the original length from which on a frequency stays as it is."""
    beta_slow: float = 1.0
    """Turns below which it is divided by the whole factor."""
    is_truncated: bool = True
    """Whether the range between the two is widened to whole pairs."""

    @property
    def context_length(self) -> int:
        """Positions that the scaled model covers."""
        return round(self.factor * self.original_length)

    def frequencies(self, periods: NDArray[np.float32], base: float) -> NDArray[np.float32]:
        """Return scaled frequencies, float32 [head_dim / 2], in the float32 steps of training.

        Args:
            periods: float32 [head_dim / 2], one over the unscaled frequencies.
            base: of which the periods are powers, above 1.
        """
        one, pairs = np.float32(1.0), np.arange(len(periods), dtype=np.float32)
        low, high = self._range(2 * len(periods), base)
        if low == high:
            high += 0.001
        kept = one - np.clip((pairs - np.float32(low)) / np.float32(high - low), 0, 1)
        divided = one / (np.float32(self.factor) * periods)
        return np.asarray(divided * (one - kept) + one / periods * kept, np.float32)

    def _range(self, head_dim: int, base: float) -> tuple[float, float]:
        """Return the pairs from which on scaling begins, and is whole."""
        low, high = (
            head_dim * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))
            for turns in (self.beta_fast, self.beta_slow)
        )
        if self.is_truncated:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, head_dim - 1)


@dataclass(frozen=True, slots=True)
class Llama3:
    """Llama 3.1's scaling: fast frequencies stay, slow ones are divided, those between are mixed."""

    factor: float
    low_freq_factor: float
    """Turns within the original length below which a frequency is divided by the whole factor."""
    high_freq_factor: float
    """Turns above which it stays as it is."""
    original_length: float
    """Positions that the model was first trained on."""

    def frequencies(self, periods: NDArray[np.float32], base: float) -> NDArray[np.float32]:
        """Return scaled frequencies, as `Yarn.frequencies` does; the base is of no account."""
        low, factor = np.float32(self.low_freq_factor), np.float32(self.factor)
        unscaled = np.float32(1.0) / periods
        wavelengths = np.float32(2 * math.pi) / unscaled
        spread = np.float32(self.high_freq_factor - self.low_freq_factor)
        share = (np.float32(self.original_length) / wavelengths - low) / spread
        mixed = (np.float32(1.0) - share) * unscaled / factor + share * unscaled
        is_slow = wavelengths > np.float32(self.original_length / self.low_freq_factor)
        is_fast = wavelengths < np.float32(self.original_length / self.high_freq_factor)
        scaled = np.where(is_slow, unscaled / factor, np.where(is_fast, unscaled, mixed))
        return np.asarray(scaled, np.float32)


def yarn_attention_factor(factor: float, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> float:
    """Return the factor on cos and sin that goes with YaRN where a file does not give it.

    Args:
        factor: of the scaling.
        mscale, mscale_all_dim: weights of two such factors that are divided; used where both are given.
    """

    def of(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    return of(mscale) / of(mscale_all_dim) if mscale and mscale_all_dim else of(1.0)
