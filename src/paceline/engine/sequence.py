"""What the engine keeps for one request while it runs."""

from __future__ import annotations

import enum
from collections.abc import Hashable

from paceline.cache import BlockTable
from paceline.models.detokenizer import IncrementalDetokenizer
from paceline.records import FinishReason, PositionLogprobs, Request
from paceline.sampling.state import SamplingState


class SequenceStatus(enum.Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    """Holds no blocks; the scheduler admits it, or it is aborted."""
    RUNNING = "running"
    """Holds blocks and takes part in steps; commit finishes it, the scheduler may preempt it."""
    FINISHED = "finished"
    """Holds nothing; nobody changes it again."""


class Sequence:
    """One request's tokens, blocks and progress.

    `num_computed_tokens` says how far the target's KV reaches. Prefill, chunking, rejection and preemption
    are all changes to that one number. Only `engine.commit` grows a sequence or ends it.
    """

    def __init__(
        self,
        number: int,
        request: Request,
        *,
        table: BlockTable,
        sampling: SamplingState,
        detokenizer: IncrementalDetokenizer,
        max_total_tokens: int,
        submitted_at: float,
        index: int = 0,
        answer_scope: Hashable = None,
    ) -> None:
        self.number = number
        self.request = request
        self.index = index
        """Which of the request's n choices this is."""
        self.sampling = sampling
        self.detokenizer = detokenizer
        self.table = table
        self.status = SequenceStatus.WAITING
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        """Tokens of the prompt that were computed for others."""
        self.was_preempted = False
        # Prompt and output together may not pass this: max_tokens or the context, whichever ends first.
        self.max_total_tokens = max_total_tokens
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.is_draft: list[bool] = []
        """For each output token, whether it was drafted."""
        self.logprobs: list[PositionLogprobs] = []
        self.num_prompt_logprobs = None if index else request.sampling.prompt_logprobs
        """How many alternatives to list for each token of the prompt; none where none was asked for, and
        for all choices but the first, whose prompt is the same."""
        self.prompt_logprobs: list[PositionLogprobs | None] = [None]
        """Of the prompt's tokens, as far as they are known; its first has none."""
        self.text = ""
        """Text that is certain, and sent."""
        self.unsent_text = ""
        """Text that is certain, and not yet sent."""
        self.num_sent_tokens = 0
        self.num_steps = 0
        self.num_drafted = 0
        self.draft_lengths: list[int] = []
        """Drafts verified in each step that had any."""
        self.drafter: str | None = None
        """Who proposes for it in the step at hand."""
        self.used_drafters: set[str] = set()
        self.fallback: str | None = None
        """Why it drafts no more, though its request asked for it."""
        self.idle_reason: str | None = None
        """Why it went without drafts for a while, though its request asked for them."""
        self.draft_s = 0.0
        self.verify_s = 0.0
        self.submitted_at = submitted_at
        self.progressed_at = submitted_at
        """When something was last computed for it."""
        self.answer_scope = answer_scope
        """Whose earlier answers its drafts may come from."""
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens produced so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """Tokens produced so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens that the target has not computed; the last one is always among them."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def can_reuse_prefix(self) -> bool:
        """Whether KV that another sequence computed will do: not where the prompt's own rows are wanted."""
        return self.num_prompt_logprobs is None

    def num_scored_rows(self, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` rows, counted from their end, tell of the prompt's tokens.

        Row p tells of token p + 1. What is known from before a preemption is not asked for again.
        """
        if self.num_prompt_logprobs is None or len(self.prompt_logprobs) >= self.num_prompt_tokens:
            return 0
        end = self.num_computed_tokens + num_tokens
        return max(0, end - max(self.num_computed_tokens, len(self.prompt_logprobs) - 1))

    @property
    def is_decoding(self) -> bool:
        """Whether one row is all that is missing, and the first token is out."""
        return self.num_uncomputed_tokens == 1 and self.num_output_tokens > 0

    @property
    def max_useful_draft_length(self) -> int:
        """Drafts beyond this many could not be emitted: the target adds one token of its own."""
        return max(0, self.max_total_tokens - len(self.token_ids) - 1)

    def preempt(self) -> None:
        """Give all blocks back; what is not found again is computed again, to the same bits."""
        self.table.clear()
        self.num_computed_tokens = 0
        self.was_preempted = True
        self.status = SequenceStatus.WAITING
