"""A distribution over the few tokens that may come next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Tokens with a chance above zero, after all processors; every other token has none."""

    token_ids: npt.NDArray[np.int64]  # [num_kept], ascending
    log_probs: npt.NDArray[np.float64]  # [num_kept], natural logarithms; their exponentials sum to 1

    @classmethod
    def one_hot(cls, token_id: int) -> Distribution:
        """Return the distribution that is certain of `token_id`."""
        return cls(np.array([token_id], dtype=np.int64), np.zeros(1))

    @classmethod
    def from_scores(cls, token_ids: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> Distribution:
        """Normalise scores whose greatest is 0 (log-probabilities up to a constant); ids ascending."""
        return cls(token_ids, scores - np.log(np.exp(scores).sum()))

    @property
    def is_one_hot(self) -> bool:
        """Whether one token is certain."""
        return len(self.token_ids) == 1

    @property
    def probs(self) -> npt.NDArray[np.float64]:
        """Probabilities [num_kept], in the order of `token_ids`."""
        return np.exp(self.log_probs)

    def log_prob_of(self, token_id: int) -> float:
        """Return the log-probability of one token; minus infinity where it cannot come."""
        index = int(np.searchsorted(self.token_ids, token_id))
        if index == len(self.token_ids) or self.token_ids[index] != token_id:
            return -np.inf
        return float(self.log_probs[index])

    def prob_of(self, token_id: int) -> float:
        """Return the probability of one token; 0 where it cannot come."""
        return float(np.exp(self.log_prob_of(token_id)))

    def probs_at(self, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the probabilities of many tokens, 0 where one cannot come; ids [n] ascending, n >= 1."""
        dense = np.zeros(max(int(token_ids[-1]), int(self.token_ids[-1])) + 1)
        dense[self.token_ids] = self.probs
        return dense[token_ids]
