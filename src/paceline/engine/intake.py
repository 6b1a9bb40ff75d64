"""From a request to the sequences that will answer it, one for each of its choices."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from paceline.clock import Clock
from paceline.drafters.interface import Drafter
from paceline.drafters.scope import answer_scope
from paceline.engine.admission import check_request
from paceline.engine.sequence import Sequence
from paceline.models.detokenizer import IncrementalDetokenizer
from paceline.models.interface import Vocabulary
from paceline.models.kv_memory import KVMemory
from paceline.records import AnswerSharing, Request
from paceline.sampling.grammar import Grammar, GrammarCompiler
from paceline.sampling.noise import derive_seed
from paceline.sampling.state import SamplingState


class Intake:
    """Checks requests and makes their sequences. Safe in any thread.

    Args:
        vocabulary: the target's tokens.
        vocab_size: width of its rows of logits.
        drafters: those that requests may name.
        memory: the target's KV blocks.
        context_length: most positions of one sequence.
        clock: tells when a request came.
        answer_sharing: whose earlier answers a request's drafts may come from.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        vocab_size: int,
        drafters: Mapping[str, Drafter],
        memory: KVMemory,
        *,
        context_length: int,
        clock: Clock,
        answer_sharing: AnswerSharing,
    ) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._drafters = drafters
        self._memory = memory
        self._context_length = context_length
        self._clock = clock
        self._answer_sharing = answer_sharing
        self._grammars = GrammarCompiler(vocabulary.token_bytes, vocabulary.num_real_tokens)
        self._numbers = itertools.count()

    def prepare(self, request: Request) -> tuple[Sequence, ...]:
        """Return the request's n choices; nothing of it is kept here.

        Raises:
            RequestError: it can never run.
        """
        check_request(request, self._context_length, self._vocab_size, self._drafters)
        form = request.sampling.structured_output
        grammar = None if form is None else self._grammars.compile(form)
        return tuple(self._sequence(request, index, grammar) for index in range(request.sampling.n))

    def _sequence(self, request: Request, index: int, grammar: Grammar | None) -> Sequence:
        params = request.sampling
        end_token_ids = frozenset() if params.ignore_eos else self._vocabulary.eos_ids
        room = self._context_length
        if params.max_tokens is not None:
            room = min(room, len(request.prompt_token_ids) + params.max_tokens)
        return Sequence(
            next(self._numbers),
            request,
            # Who scores the prompt needs every row of it, also those that others computed before.
            table=self._memory.new_table(shares=params.prompt_logprobs is None or index > 0),
            sampling=SamplingState(
                params,
                derive_seed(request.seed, index),
                request.prompt_token_ids,
                end_token_ids,
                vocab_size=self._vocab_size,
                num_real_tokens=self._vocabulary.num_real_tokens,
                grammar=grammar,
            ),
            detokenizer=IncrementalDetokenizer(self._vocabulary.token_bytes, params.stop, params.min_tokens),
            max_total_tokens=room,
            submitted_at=self._clock(),
            index=index,
            answer_scope=answer_scope(request, self._answer_sharing),
        )
