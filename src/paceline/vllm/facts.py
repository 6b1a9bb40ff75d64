"""What an engine core is, as far as routes and policy have to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.config.drafter_names import MODEL, SUFFIX

LOOK_UPS = ("ngram", "ngram_gpu", "suffix")
"""vLLM's speculative methods that run no model."""
FULL_LENGTH = ("ngram_gpu", "suffix", "medusa", "extract_hidden_states")
"""Methods that draft as many tokens as vLLM was started with: told another number, they fail."""


def drafter_of(method: str | None) -> str | None:
    """Return what a speculative method of vLLM is called in routes and metrics.

    A look-up in the text is `suffix`; whatever runs a model, be it a draft model, EAGLE, MTP or Medusa, is
    `model`."""
    if method is None:
        return None
    return SUFFIX if method in LOOK_UPS else MODEL


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine core."""

    rank: int = 0
    """Of data parallelism."""
    vllm_version: str = ""
    method: str | None = None
    """vLLM's speculative method; none where it drafts nothing."""
    max_draft_length: int = 0
    """vLLM's `num_speculative_tokens`."""
    is_async: bool = False
    can_vary_depth: bool = True
    """Whether it may draft fewer tokens in one step than in another. Not by the methods of `FULL_LENGTH`, nor
    where ranks of data parallelism run the drafter together: one that made fewer passes would let the others
    wait for ever."""
    can_skip: bool = False
    """Whether it can leave the drafter out where nobody drafts: a model's pass, or looking up and what vLLM
    does around it."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Models, devices and versions in words: what was learned is good for exactly these."""

    @property
    def drafter(self) -> str | None:
        """What its method is called in routes and metrics; none where it drafts nothing."""
        return drafter_of(self.method)

    @property
    def has_draft_kv(self) -> bool:
        """Whether its drafter has KV of its own, which follows the target's only if it runs in each step."""
        return self.drafter == MODEL
