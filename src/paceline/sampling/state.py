"""What the samplers know of one sequence: its parameters, its seed, and the tokens that stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from paceline.errors import InvalidParameterError
from paceline.records import SamplingParams
from paceline.sampling.grammar import Grammar
from paceline.sampling.grammar_state import GrammarState, Mask

IdArray = npt.NDArray[np.int64]


def check_against_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """Refuse parameters that name tokens the model does not have.

    Raises:
        InvalidParameterError: a key of `logit_bias` or one of `stop_token_ids` is not in 0 .. vocab_size - 1.
    """
    for name, token_ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidParameterError(
                    given=f"token id {token_id} in {name}",
                    expected=f"token ids from 0 to {vocab_size - 1}, the model's vocabulary",
                    remedy="Take the ids from the tokenizer of the target model",
                )


class TokenCounts:
    """How often each token was seen, in arrays that grow in place, so that a step never counts afresh."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._ids = np.empty(16, dtype=np.int64)
        self._counts = np.zeros(16, dtype=np.int64)

    def add(self, token_ids: Iterable[int]) -> None:
        """Count these tokens too."""
        for token_id in token_ids:
            if token_id not in self._index:
                self._open(token_id)
            self._counts[self._index[token_id]] += 1

    def _open(self, token_id: int) -> None:
        index = self._index[token_id] = len(self._index)
        if index == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[index] = token_id

    def including(self, more: Iterable[int]) -> tuple[IdArray, IdArray]:
        """Return distinct token ids [n] and their counts [n], as if `more` had been added; read-only."""
        ids, counts = self._ids[: len(self._index)], self._counts[: len(self._index)]
        extra = Counter(more)
        if not extra:
            return ids, counts
        counts = counts.copy()
        for token_id in [token_id for token_id in extra if token_id in self._index]:
            counts[self._index[token_id]] += extra.pop(token_id)
        new_ids, new_counts = (np.fromiter(part, np.int64, len(extra)) for part in (extra, extra.values()))
        return np.concatenate([ids, new_ids]), np.concatenate([counts, new_counts])


class SamplingState:
    """One sequence as the samplers see it. Only the engine's commit changes it, through `append`.

    Args:
        params: the request's parameters, already checked against the vocabulary.
        seed: the sequence's 64-bit seed; negative numbers count modulo 2**64.
        prompt_token_ids: the prompt, for the repetition penalty.
        end_token_ids: the model's end tokens, none with `ignore_eos`. Those of `params.stop_token_ids` are
            added.
        vocab_size: width of a row of the target's logits.
        num_real_tokens: token ids from here up are padding of the matrix and are never sampled.
        grammar: the form that `params.structured_output` asks for, compiled for this vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        prompt_token_ids: Sequence[int],
        end_token_ids: Iterable[int],
        vocab_size: int,
        num_real_tokens: int | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        self.params = params
        self.seed = seed % 2**64
        self.end_token_ids = frozenset(end_token_ids) | frozenset(params.stop_token_ids)
        self.vocab_size = vocab_size
        self.num_real_tokens = vocab_size if num_real_tokens is None else num_real_tokens
        self.bias_token_ids = self._real_ids(params.logit_bias)
        self.bias_values = np.array(
            [params.logit_bias[int(i)] for i in self.bias_token_ids], dtype=np.float64
        )
        self._end_ids = self._real_ids(sorted(self.end_token_ids))
        self.grammar: GrammarState | None = None if grammar is None else grammar.start(self.end_token_ids)
        """Where the output stands in its grammar; none where its form is free."""
        self._output_token_ids: list[int] = []
        self._output_counts = TokenCounts()
        self._seen_counts = TokenCounts()
        if self.has_repetition_penalty:
            self._seen_counts.add(self._real(prompt_token_ids))

    def append(self, token_ids: Iterable[int]) -> None:
        """Add tokens that stand to the output."""
        new = list(token_ids)
        self._output_token_ids += new
        if self.grammar is not None:
            self.grammar.append(new)
        if self.has_count_penalty:
            self._output_counts.add(self._real(new))
        if self.has_repetition_penalty:
            self._seen_counts.add(self._real(new))

    def fresh(self, prompt_token_ids: Sequence[int]) -> SamplingState:
        """Return the same sequence with no output yet; for sequences whose form is free."""
        assert self.grammar is None, "a grammar's state cannot be begun anew from here"
        return SamplingState(
            self.params,
            self.seed,
            prompt_token_ids,
            self.end_token_ids,
            self.vocab_size,
            self.num_real_tokens,
        )

    @property
    def output_token_ids(self) -> Sequence[int]:
        """The output so far; to be read, not changed."""
        return self._output_token_ids

    @property
    def num_output_tokens(self) -> int:
        """Length of the output, which is the output index of the next token."""
        return len(self._output_token_ids)

    @property
    def has_repetition_penalty(self) -> bool:
        """Whether tokens of the prompt and the output are penalised."""
        return self.params.repetition_penalty != 1.0

    @property
    def has_count_penalty(self) -> bool:
        """Whether tokens of the output are penalised, once or for each time."""
        return self.params.presence_penalty != 0.0 or self.params.frequency_penalty != 0.0

    def seen_token_ids(self, drafted: Sequence[int] = ()) -> IdArray:
        """Return the distinct ids [n] of the prompt, the output and `drafted`."""
        return self._seen_counts.including(self._real(drafted))[0]

    def output_counts(self, drafted: Sequence[int] = ()) -> tuple[IdArray, IdArray]:
        """Return the distinct ids [n] of the output and `drafted`, and how often each comes [n]."""
        return self._output_counts.including(self._real(drafted))

    def banned_token_ids(self, output_index: int) -> IdArray:
        """Return the ids [n] that must not come at this output index: end tokens, until `min_tokens`."""
        return self._end_ids if output_index < self.params.min_tokens else self._end_ids[:0]

    def allowed(self, drafted: Sequence[int] = ()) -> Mask | None:
        """Return which tokens the grammar lets come next, bool [num_real_tokens]; none without a grammar.

        Raises:
            GenerationError: it lets none come.
        """
        return None if self.grammar is None else self.grammar.allowed(drafted)

    def _real(self, token_ids: Iterable[int]) -> Iterable[int]:
        return (token_id for token_id in token_ids if 0 <= token_id < self.num_real_tokens)

    def _real_ids(self, token_ids: Iterable[int]) -> IdArray:
        return np.array(list(self._real(token_ids)), dtype=np.int64)
