"""Earlier answers, kept apart by scope, as texts in which a running sequence may find itself again.

A scope is whatever may share its answers: by default one route of one API key. Nothing of one scope is ever
matched in another. Memory is bounded in tokens, per scope and over all: a scope's answers are kept in a few
generations, each an automaton of its own, and the oldest generation is dropped as a whole, since a single
answer cannot be taken out of an automaton. So the work for a token is the same however long a server runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from paceline.drafters.suffix_automaton import SuffixAutomaton

NUM_GENERATIONS = 4
ANSWER_END = -3
"""Stands behind each answer in an automaton; no token, so that no match reaches over it."""


class AnswerStore:
    """The most recent answers of each scope.

    Args:
        tokens_per_scope: most tokens of one scope, marks between answers included.
        max_tokens: most tokens over all scopes; the scope that was fed longest ago loses its oldest first.
    """

    def __init__(self, tokens_per_scope: int = 1 << 16, max_tokens: int = 1 << 19) -> None:
        if tokens_per_scope < 2 * NUM_GENERATIONS or max_tokens < tokens_per_scope:
            raise ValueError(
                f"{tokens_per_scope} tokens a scope and {max_tokens} over all; expected at least "
                f"{2 * NUM_GENERATIONS} a scope, and as many or more over all"
            )
        self._generation_size = tokens_per_scope // NUM_GENERATIONS
        self._max_tokens = max_tokens
        self._scopes: OrderedDict[Hashable, list[SuffixAutomaton]] = OrderedDict()
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of all scopes, marks between answers included."""
        return self._num_tokens

    @property
    def num_scopes(self) -> int:
        """Scopes that have answers."""
        return len(self._scopes)

    def add(self, scope: Hashable, token_ids: Sequence[int]) -> None:
        """Keep an answer; of one longer than a generation, its end."""
        if not token_ids:
            return
        kept = [*token_ids[-(self._generation_size - 1) :], ANSWER_END]
        generations = self._scopes.setdefault(scope, [])
        self._scopes.move_to_end(scope)
        if not generations or generations[-1].num_tokens + len(kept) > self._generation_size:
            if len(generations) == NUM_GENERATIONS:
                self._num_tokens -= generations.pop(0).num_tokens
            generations.append(SuffixAutomaton())
        generations[-1].extend(kept)
        self._num_tokens += len(kept)
        while self._num_tokens > self._max_tokens:
            self._drop_oldest()

    def texts(self, scope: Hashable) -> Sequence[SuffixAutomaton]:
        """Return a scope's texts, the most recent last; to be read, not changed."""
        return self._scopes.get(scope, ())

    def clear(self) -> None:
        """Forget all answers."""
        self._scopes.clear()
        self._num_tokens = 0

    def _drop_oldest(self) -> None:
        scope, generations = next(iter(self._scopes.items()))
        self._num_tokens -= generations.pop(0).num_tokens
        if not generations:
            del self._scopes[scope]
