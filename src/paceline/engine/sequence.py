"""What the engine keeps for one request while it runs."""

from __future__ import annotations

import enum
from collections.abc import Hashable

from paceline.cache import BlockPool, BlockTable
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
        pool: BlockPool,
        sampling: SamplingState,
        detokenizer: IncrementalDetokenizer,
        max_total_tokens: int,
        submitted_at: float,
        answer_scope: Hashable = None,
    ) -> None:
        self.number = number
        self.request = request
        self.sampling = sampling
        self.detokenizer = detokenizer
        self.table = BlockTable(pool)
        self.status = SequenceStatus.WAITING
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        # Prompt and output together may not pass this: max_tokens or the context, whichever ends first.
        self.max_total_tokens = max_total_tokens
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.is_draft: list[bool] = []
        """For each output token, whether it was drafted."""
        self.logprobs: list[PositionLogprobs] = []
        self.text = ""
        """Text that is certain, and sent."""
        self.unsent_text = ""
        """Text that is certain, and not yet sent."""
        self.num_sent_tokens = 0
        self.num_steps = 0
        self.num_drafted = 0
        self.draft_s = 0.0
        self.verify_s = 0.0
        self.submitted_at = submitted_at
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
    def is_decoding(self) -> bool:
        """Whether one row is all that is missing, and the first token is out."""
        return self.num_uncomputed_tokens == 1 and self.num_output_tokens > 0

    @property
    def max_useful_draft_length(self) -> int:
        """Drafts beyond this many could not be emitted: the target adds one token of its own."""
        return max(0, self.max_total_tokens - len(self.token_ids) - 1)

    def preempt(self) -> None:
        """Give all blocks back; what was computed will be computed again, to the same bits."""
        self.table.clear()
        self.num_computed_tokens = 0
        self.status = SequenceStatus.WAITING
