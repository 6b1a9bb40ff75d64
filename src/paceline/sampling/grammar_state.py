"""Where one answer stands in its grammar, and a look ahead along drafts that leaves no trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import llguidance
import numpy as np
import numpy.typing as npt

from paceline.errors import GenerationError

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Position:
    """What is known of a text, the answer so far or drafts further on."""

    is_complete: bool
    """Whether no token but an end token may follow."""
    mask: Mask | None = None


class GrammarState:
    """The grammar's side of one sequence. Only `append` moves it; everything else looks and comes back.

    The matcher stands at the end of the drafts that were looked at last, so that draft model, trimming and
    verification, which follow the same drafts, compute each set of tokens once.

    Args:
        start: a matcher at the beginning of a text. Not changed.
        num_real_tokens: width of the masks.
        end_token_ids: tokens that end the answer; they may come exactly when the text is whole.
    """

    def __init__(
        self, start: llguidance.LLMatcher, num_real_tokens: int, end_token_ids: Iterable[int]
    ) -> None:
        self._start = start
        self._num_real_tokens = num_real_tokens
        self._end_ids = np.array([i for i in end_token_ids if 0 <= i < num_real_tokens], dtype=np.int64)
        self._end_set = frozenset(self._end_ids.tolist())
        self._accepted: list[int] = []
        self._restart()

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow the answer so far but an end token."""
        return self._positions[0].is_complete

    def append(self, token_ids: Iterable[int]) -> None:
        """Take over tokens that stand; one that ends the answer changes nothing."""
        for token_id in token_ids:
            if token_id in self._end_set:
                continue
            self._accepted.append(token_id)
            if self._ahead[:1] == [token_id]:
                del self._ahead[0], self._positions[0]
                continue
            self._go_back_to(0)
            if self._consume(token_id):
                del self._ahead[0], self._positions[0]
            else:
                self._restart()

    def allowed(self, drafted: Sequence[int] = ()) -> Mask:
        """Return which tokens may come after the answer so far and `drafted`: bool [num_real_tokens].

        Raises:
            GenerationError: none may, or the drafts themselves leave the grammar, or it is too complex.
        """
        if self._follow(drafted) < len(drafted):
            raise _no_token("the drafts leave the grammar")
        mask = self._positions[len(drafted)].mask
        if mask is None:
            mask = self._compute_mask()
        if mask is None and not drafted:
            mask = self._compute_mask()  # with what drafts left behind out of the way
        if mask is None:
            raise _no_token("no token goes on, or the grammar has become too complex")
        if not mask.any():
            raise _no_token("the text has its form and cannot go on")
        return mask

    def num_admissible(self, drafted: Sequence[int]) -> int:
        """Return how many drafts, from the first on, the answer can go on behind.

        Neither an end token nor one that completes the form is among them: what the target adds behind the
        drafts before it is that token itself.
        """
        reached = self._follow(drafted)
        return reached - 1 if reached and self._positions[reached].is_complete else reached

    def _follow(self, drafted: Sequence[int]) -> int:
        """Bring the matcher behind as many drafts as the grammar allows, and return their number."""
        common = 0
        for known, token_id in zip(self._ahead, drafted, strict=False):
            if known != token_id:
                break
            common += 1
        self._go_back_to(common)
        for number in range(common, len(drafted)):
            if self._positions[-1].is_complete or not self._consume(drafted[number]):
                return number
        return len(drafted)

    def _consume(self, token_id: int) -> bool:
        if token_id in self._end_set or not 0 <= token_id < self._num_real_tokens:
            return False
        is_taken = self._matcher.try_consume_tokens([token_id]) == 1
        if self._matcher.is_error():
            self._restart()
            return False
        if is_taken:
            self._ahead.append(token_id)
            self._positions.append(_Position(self._matcher.is_stopped()))
        return is_taken

    def _go_back_to(self, num_ahead: int) -> None:
        surplus = len(self._ahead) - num_ahead
        if surplus:
            self._matcher.rollback(surplus)
            del self._ahead[num_ahead:], self._positions[num_ahead + 1 :]

    def _compute_mask(self) -> Mask | None:
        """Return the mask where the matcher stands; none where it failed, and then it is a fresh one."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            self._restart()
            return None
        bits = np.unpackbits(packed, count=self._num_real_tokens + 1, bitorder="little").view(np.bool_)
        mask = bits[: self._num_real_tokens]
        mask[self._end_ids] = bits[-1]
        self._positions[-1].mask = mask
        return mask

    def _restart(self) -> None:
        """Stand at the end of the answer with a fresh matcher: one that failed never recovers.

        What failed on the way along drafts, which the answer may never take, must not hurt the answer.
        """
        self._matcher = self._start.deep_copy()
        self._matcher.consume_tokens(self._accepted)
        self._ahead: list[int] = []
        self._positions = [_Position(self._matcher.is_stopped() and not self._matcher.is_error())]


def _no_token(why: str) -> GenerationError:
    return GenerationError(
        given=f"structured output after which no token can come: {why}",
        expected="a token that the form allows",
        remedy="Simplify the form, and leave out ignore_eos",
    )
