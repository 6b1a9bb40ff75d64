"""Toy targets and states for the sampling tests: logits from a table, small enough to check by eye."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.records import SamplingParams, Verification
from paceline.sampling import sampler
from paceline.sampling.state import SamplingState
from paceline.sampling.verdict import Verdict

Target = Callable[[Sequence[int]], Any]
"""Output so far to a row of logits [vocab]."""


def state_for(
    vocab_size: int,
    *,
    seed: int = 1,
    prompt: Sequence[int] = (),
    end: Sequence[int] = (),
    num_real: int | None = None,
    **params: Any,
) -> SamplingState:
    return SamplingState(SamplingParams(**params), seed, prompt, end, vocab_size, num_real)


def constant(logits: Sequence[float]) -> Target:
    row = np.array(logits, dtype=np.float32)
    return lambda output: row


def markov(table: Any) -> Target:
    """Logits by the last token; row 0 where there is none."""
    rows = np.asarray(table, dtype=np.float32)
    return lambda output: rows[output[-1] if output else 0]


def step(
    target: Target,
    state: SamplingState,
    drafts: Sequence[int] = (),
    sampled_from: Any = None,
    verification: Verification = Verification.COUPLED,
) -> Verdict:
    """One verify step, with the rows that a target forward over the drafts would give; not yet appended."""
    output = list(state.output_token_ids)
    rows = np.stack([target([*output, *drafts[:i]]) for i in range(len(drafts) + 1)])
    return sampler.verify(verification, rows, drafts, sampled_from, state)


def generate(
    target: Target,
    state: SamplingState,
    num_tokens: int,
    draft: Callable[[SamplingState], Sequence[int]] = lambda state: (),
    verification: Verification = Verification.COUPLED,
) -> list[int]:
    """Step until there are `num_tokens`; tokens past them are cut off, as the engine would."""
    while state.num_output_tokens < num_tokens:
        state.append(step(target, state, draft(state), verification=verification).token_ids)
    return list(state.output_token_ids[:num_tokens])
