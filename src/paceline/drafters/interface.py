"""The seam between the engine and whatever proposes tokens."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from paceline.policy.interface import DraftRule
from paceline.records import Verification
from paceline.sampling.distribution import Distribution
from paceline.sampling.state import SamplingState


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that wants drafts in this step."""

    sequence_id: int
    token_ids: Sequence[int]
    """The whole sequence so far, prompt and output; it only ever grows between two calls."""
    draft_length: int
    """Most tokens to propose, at least 1."""
    sampling: SamplingState
    """The sequence's sampling state, to be read and not changed."""
    verification: Verification
    scope: Hashable = None
    """Whose earlier answers may be drafted from."""
    rule: DraftRule | None = None
    """Says when a draft is not worth going on with; the same one for all requests of a call, or none."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One sequence whose text a draft model is asked about."""

    sequence_id: int
    token_ids: Sequence[int]
    """Prompt and output."""
    replay: SamplingState
    """A state of its own, with no output yet, that the drafter may move along the text."""
    num_prompt_tokens: int
    most_rows: int | None = None
    """Rows of the pass at most; none leaves it to the drafter."""


@dataclass(frozen=True, slots=True)
class DraftProposal:
    """Tokens proposed for one sequence; fewer than asked, or none, is fine."""

    token_ids: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    """The drafter's own estimate of each token's chance; a hint to the policy that no verifier reads."""
    sampled_from: tuple[Distribution, ...] | None = None
    """The distributions that the tokens were really *sampled* from, for rejection verification. None means
    that the proposal is deterministic (a lookup, an arg-max, a coupled sample): q is one-hot."""
    source: str | None = None
    """Who made it, where a drafter asks others; else the drafter itself."""


class Drafter(Protocol):
    """Anything that proposes tokens."""

    @property
    def name(self) -> str:
        """The word used for it in flags, results and metrics."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
        """Return one proposal for each request, in order."""

    def learn(self, scope: Hashable, token_ids: Sequence[int]) -> None:
        """Take in an answer that ended well, for later drafts of its scope; most have nothing to learn."""

    def forget_answers(self) -> None:
        """Forget all that was learned."""

    def release(self, sequence_id: int) -> None:
        """Forget a sequence and free what is held for it; unknown ids are ignored."""


@runtime_checkable
class HoldsMemory(Protocol):
    """What a drafter also is if it holds KV blocks and weights that can be had back while the engine runs."""

    @property
    def num_held_blocks(self) -> int:
        """Blocks that sequences hold, those they share counted for each."""

    @property
    def num_prefix_queries(self) -> int:
        """Tokens of sequences that were looked up when they started."""

    @property
    def num_prefix_hits(self) -> int:
        """Of these, tokens whose KV was there already."""

    @property
    def is_loaded(self) -> bool:
        """Whether it can propose anything."""

    def num_cached_tokens(self, sequence_id: int) -> int:
        """Return how many positions of a sequence are in its cache."""

    def take_pass_rows(self) -> Sequence[int]:
        """Return the rows of each forward pass since the last call."""

    def reclaim(self) -> bool:
        """Give back the blocks of the youngest sequence that holds some; False if none does."""

    def forget_prefixes(self) -> None:
        """Forget what is cached of sequences that are gone."""

    def unload(self) -> None:
        """Give back weights, blocks and what is cached."""

    def load(self) -> None:
        """Have the weights again; proposals are what they would have been."""


@runtime_checkable
class ScoresText(Protocol):
    """What a drafter also is if it can say how it would have fared on text that stands already."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[tuple[tuple[float, bool], ...]]:
        """Read what it lacks of each sequence, a chunk at most, and judge itself on the output in it.

        Returns: For each request, for one output position after the other: its confidence in the token that
            it would have drafted there under coupled verification, and whether that is the token that stands.
        """
