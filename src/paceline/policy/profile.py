"""What a draft comes to, by position, at the prices of a moment."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Prices(NamedTuple):
    """What a moment of the machine is worth, in expected tokens of weight 1."""

    row: float
    """One more row of the target."""
    draft: float
    """One sequence's part of a draft pass."""


class Profile(NamedTuple):
    """Expected figures of one sequence's draft, by position [length]."""

    gain: np.ndarray
    """Tokens that are verified and accepted."""
    rows: np.ndarray
    """Rows of the target; at most 1 at each position."""
    active: np.ndarray
    """Draft passes that it takes part in; 0 where no draft model runs."""

    def value(self, prices: Prices) -> float:
        """Return what the whole draft is worth beyond its cost."""
        net = self.gain.sum() - prices.row * self.rows.sum() - prices.draft * self.active.sum()
        return float(net)


NOTHING = Profile(np.zeros(0), np.zeros(0), np.zeros(0))
