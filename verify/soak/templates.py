"""What may be asked: a pool of requests of every kind, small beside the traffic, so that few answers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.cli.input_file import read_requests
from paceline.llm import LLM
from paceline.parameters import StructuredOutput
from paceline.records import SamplingParams

TEXTS = Path(__file__).parents[2] / "examples" / "routes.jsonl"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
MAX_TOP_K = 20
"""As many as log-probabilities are listed at most, so that a list shows whether a token was among them."""


@dataclass(frozen=True, slots=True)
class Template:
    """A request that is made again and again, each time with other speculation."""

    number: int
    kind: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    """Its seed is given, so that there is one right answer."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long prompts and answers are, in tokens."""

    context_length: int
    max_prompt: int
    max_output: int


Params = dict[str, Any]
Maker = Callable[[np.random.Generator, LLM], Params]


def _any_temperature(rng: np.random.Generator) -> float:
    return float(rng.choice([0.0, 0.7, 1.2]))


def _pick(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def _biasable(llm: LLM) -> int:
    """Return how many ids to choose from: frequent ones, lest nothing come of it."""
    return min(2000, llm.loaded.tokenizer.num_real_tokens)


def _cannot_go_on(rng: np.random.Generator, llm: LLM) -> Params:
    """A form of one token, which may not come yet."""
    (digit,) = llm.loaded.tokenizer.encode("7")
    return {"structured_output": StructuredOutput(choice=("7",)), "stop_token_ids": (digit,), "min_tokens": 1}


KINDS: dict[str, Maker] = {
    "greedy": lambda rng, llm: {},
    "temperature": lambda rng, llm: {"temperature": float(rng.uniform(0.2, 1.5))},
    "top-p": lambda rng, llm: {"temperature": 0.8, "top_p": float(rng.uniform(0.3, 1.0))},
    "top-k": lambda rng, llm: {"temperature": 1.0, "top_k": int(rng.integers(1, MAX_TOP_K + 1))},
    "min-p": lambda rng, llm: {"temperature": 1.2, "min_p": float(rng.uniform(0.02, 0.3))},
    "all samplers": lambda rng, llm: {"temperature": 1.0, "top_k": 15, "top_p": 0.9, "min_p": 0.05},
    "penalties": lambda rng, llm: {
        "temperature": _any_temperature(rng),
        "frequency_penalty": float(rng.uniform(-0.5, 1.5)),
        "presence_penalty": float(rng.uniform(-0.5, 1.5)),
        "repetition_penalty": float(rng.uniform(0.9, 1.4)),
    },
    "logit bias": lambda rng, llm: {
        "temperature": _any_temperature(rng),
        "logit_bias": {int(i): float(rng.uniform(-5, 5)) for i in rng.integers(0, _biasable(llm), 20)},
    },
    "log-probabilities": lambda rng, llm: {
        "temperature": _any_temperature(rng),
        "logprobs": int(rng.integers(0, 6)),
    },
    "of the prompt": lambda rng, llm: {
        "temperature": _any_temperature(rng),
        "prompt_logprobs": int(rng.integers(0, 4)),
        "logprobs": 1,
    },
    "several choices": lambda rng, llm: {"temperature": 1.0, "n": int(rng.integers(2, 4)), "logprobs": 0},
    "stop strings": lambda rng, llm: {
        "temperature": _any_temperature(rng),
        "stop": _pick(rng, [(" the",), (". ", "\n"), ("e a", "s,"), (" of the", "ing ")]),
        "logprobs": 0,
    },
    "minimum length": lambda rng, llm: {"min_tokens": 6, "stop": (" ", "e"), "temperature": 0.7},
    "past the end": lambda rng, llm: {"ignore_eos": True, "temperature": _any_temperature(rng)},
    "JSON schema": lambda rng, llm: {
        "structured_output": StructuredOutput(json_schema=SCHEMA),
        "temperature": _any_temperature(rng),
        "logprobs": 1,
    },
    "regular expression": lambda rng, llm: {
        "structured_output": StructuredOutput(
            regex=_pick(rng, ["[0-9]{3}-[a-f]{2,8}", "(yes|no), [a-z ]+\\."])
        ),
        "temperature": _any_temperature(rng),
    },
    "choice": lambda rng, llm: {
        "structured_output": StructuredOutput(choice=("certainly", "certainly not", "perhaps")),
        "temperature": _any_temperature(rng),
        "n": 2,
    },
    "cannot go on": _cannot_go_on,
    "bad form": lambda rng, llm: {"structured_output": StructuredOutput(regex="[0-9")},
    "empty prompt": lambda rng, llm: {},
    "long prompt": lambda rng, llm: {},
}


def make_templates(llm: LLM, count: int, sizes: Sizes, seed: int) -> list[Template]:
    """Return `count` templates, the kinds in turn; the same for the same seed and model."""
    texts = [tuple(llm.encode_chat(request.messages or ())) for request in read_requests(TEXTS)]
    return [_template(number, llm, texts, sizes, seed) for number in range(count)]


def _template(number: int, llm: LLM, texts: Sequence[tuple[int, ...]], sizes: Sizes, seed: int) -> Template:
    rng = np.random.default_rng((seed, number))
    kind = list(KINDS)[number % len(KINDS)]
    # From the beginning, which all conversations have in common, or from anywhere.
    text = _pick(rng, texts)
    length = int(rng.integers(1, sizes.max_prompt + 1))
    start = 0 if rng.random() < 0.6 else int(rng.integers(max(1, len(text) - length)))
    prompt = text[start : start + length]
    if kind == "empty prompt":
        prompt = ()
    elif kind == "long prompt":
        prompt = (text * sizes.context_length)[: sizes.context_length]
    params: Params = {"max_tokens": int(rng.integers(1, sizes.max_output + 1))} | KINDS[kind](rng, llm)
    params["max_tokens"] = max(params["max_tokens"], params.get("min_tokens", 0))
    return Template(number, kind, prompt, SamplingParams(**params, seed=int(rng.integers(2**63))))
