"""Right answers: those of an engine that runs one request at a time and never speculates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import PacelineError
from paceline.llm import LLM
from paceline.models.detokenizer import IncrementalDetokenizer
from paceline.records import FinishReason, GenerationResult, SamplingParams, SpeculationParams
from verify.soak.templates import MAX_TOP_K, Template

OFF = SpeculationParams(enabled=False)
TOLERANCE = 1e-4
"""Of log-probabilities that are compared with a bound, and not bit by bit."""


@dataclass(frozen=True, slots=True)
class RightAnswer:
    """What one template has to come to: its choices in order, or the error with which it is refused."""

    results: tuple[GenerationResult, ...] = ()
    refusal: str | None = None


def describe_error(error: BaseException | None) -> str | None:
    """Return what must be the same of two errors."""
    return None if error is None else f"{type(error).__name__}: {error}"


def essence(result: GenerationResult) -> tuple[Any, ...]:
    """Return all of an answer that nothing but its request may decide."""
    return (
        result.index,
        result.token_ids,
        result.text,
        result.finish_reason,
        result.usage,
        result.seed,
        result.logprobs,
        result.prompt_logprobs,
        describe_error(result.error),
    )


def right_answers(llm: LLM, templates: Iterable[Template]) -> dict[int, RightAnswer]:
    """Answer each template alone, without drafts, with nothing cached of the one before."""
    return {template.number: _answer(llm, template) for template in templates}


def _answer(llm: LLM, template: Template) -> RightAnswer:
    llm.loaded.engine.clear_prefix_cache()
    try:
        request_id = llm.submit(template.token_ids, template.sampling, speculation=OFF)
    except PacelineError as error:
        return RightAnswer(refusal=describe_error(error))
    results = [chunk.result for chunk in llm.chunks(request_id) if chunk.result is not None]
    return RightAnswer(tuple(sorted(results, key=lambda result: result.index)))


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer under rejection verification: one of many that would be right."""

    token_ids: tuple[int, ...]
    sampling: SamplingParams
    result: GenerationResult


def scoring_params(sampling: SamplingParams) -> SamplingParams:
    """Return parameters with which an answer can be looked into afterwards."""
    return sampling.model_copy(update={"logprobs": MAX_TOP_K})


def faults_of_sampled(llm: LLM, answer: Sampled) -> list[str]:
    """Return what is wrong with an answer, which is read as a prompt: every token could come there, with just
    the log-probabilities that were reported, and text, usage and reason to end agree.
    """
    result, sampling = answer.result, answer.sampling
    faults = []
    if result.usage.completion_tokens != len(result.token_ids) or result.logprobs is None:
        return ["usage or log-probabilities do not fit the tokens"]
    if result.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        faults.append(f"ended with {result.finish_reason}: {describe_error(result.error)}")
    if not _text_of(llm, result.token_ids).startswith(result.text):
        faults.append("the text is not that of the tokens")
    scores = SamplingParams(max_tokens=1, prompt_logprobs=sampling.logprobs)
    llm.loaded.engine.clear_prefix_cache()
    (scored,) = llm.generate([*answer.token_ids, *result.token_ids], scores, speculation=OFF)
    assert scored.prompt_logprobs is not None
    if scored.prompt_logprobs[len(answer.token_ids) :] != result.logprobs:
        faults.append("log-probabilities differ from those of the same text as a prompt")
    elif not all(_could_come(entry, sampling) for entry in result.logprobs):
        faults.append("a token that the parameters rule out")
    return faults


def _text_of(llm: LLM, token_ids: Sequence[int]) -> str:
    detokenizer = IncrementalDetokenizer(llm.loaded.tokenizer.token_bytes)
    return "".join(map(detokenizer.push, token_ids)) + detokenizer.flush()


def _could_come(entry: Any, sampling: SamplingParams) -> bool:
    """Whether top-k and min-p leave a token in, where nothing else changed the distribution before them."""
    is_changed = bool(sampling.logit_bias) or sampling.structured_output is not None or sampling.min_tokens
    penalties = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty - 1)
    if is_changed or any(penalties):
        return True
    best = [logprob for _, logprob in entry.top]
    if sampling.top_k and entry.logprob < best[sampling.top_k - 1]:
        return False
    behind = (best[0] - entry.logprob) / sampling.temperature
    return not sampling.min_p or behind <= -math.log(sampling.min_p) + TOLERANCE
