"""How much of a target's answers a draft model guesses, its weights and output layer held in several ways.

    paceline generate --target T --input prompts.jsonl --max-tokens 128 --concurrency 8 --seed 1 --json \\
        > answers.jsonl
    python -m benchmarks.draft_acceptance D --prompts prompts.jsonl --answers answers.jsonl --seed 1

The draft model reads each answer of the target once, all rows at a time, and draws a token at every position
with the request's own noise. Under coupled verification a draft stands exactly when it equals the target's
token, and after tokens that stood the draft model has read the target's own text; so this gives what the
engine would count, for every draft length from one pass. Options of sampling must be those of the run that
made the answers.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from benchmarks.count_tokens import json_lines
from numpy.typing import NDArray

from paceline.models.chat_template import require_chat_template
from paceline.models.download import resolve
from paceline.models.interface import SequenceSlice
from paceline.models.load import LoadedModel, load_model
from paceline.models.options import LoadOptions, Weights
from paceline.records import SamplingParams
from paceline.sampling.choice import choose
from paceline.sampling.state import SamplingState

VARIANTS = ("file/full", "file/auto", "int4/full", "int4/auto")
BLOCK_SIZE, CHUNK = 16, 128


@dataclass(frozen=True)
class Answer:
    """A prompt and what the target made of it."""

    route: str
    messages: list[dict[str, str]]
    token_ids: list[int]


def load_variant(name: str, variant: str) -> LoadedModel:
    """Load a draft model; the variant says WEIGHTS/VOCABULARY."""
    weights, vocabulary = variant.split("/")
    options = LoadOptions(weights=Weights(weights), reduce_vocabulary=vocabulary == "auto")
    return load_model(resolve(name), "cpu", options)


def read_answers(prompts: Sequence[Path], answers: Sequence[Path]) -> list[Answer]:
    """Return the answers that there is a prompt for, in order."""
    asked = {line["id"]: line for line in json_lines(prompts)}
    answered = (line for line in json_lines(answers) if line.get("id") in asked)
    return [
        Answer(line["route"] or "", asked[line["id"]]["messages"], line["token_ids"]) for line in answered
    ]


def matches(draft: LoadedModel, answer: Answer, params: SamplingParams, seed: int) -> NDArray[np.bool_]:
    """Return for each token of an answer whether the draft model draws it too, bool [num_tokens]."""
    prompt = require_chat_template(draft.chat_template, draft.name).encode(answer.messages)
    state = SamplingState(params, seed, prompt, (), draft.model.vocab_size, draft.tokenizer.num_real_tokens)
    guesses = [
        choose(row, state, answer.token_ids[:index])
        for index, row in enumerate(_rows(draft, prompt, answer.token_ids))
    ]
    return np.array(guesses) == np.array(answer.token_ids)


def _rows(draft: LoadedModel, prompt: list[int], token_ids: list[int]) -> Iterator[NDArray[np.float32]]:
    """Yield the logits that each token of an answer is drawn from."""
    text, first = [*prompt, *token_ids[:-1]], len(prompt) - 1
    num_blocks = -(-len(text) // BLOCK_SIZE)
    kv = draft.model.allocate_kv(num_blocks, BLOCK_SIZE)
    borders = [*range(0, first, CHUNK), *range(first, len(text), CHUNK), len(text)]
    for start, end in itertools.pairwise(borders):
        part = SequenceSlice(text[start:end], start, range(num_blocks), end - start if start >= first else 0)
        with torch.inference_mode():
            yield from draft.model.forward([part], kv).numpy()


def tokens_per_step(matched: NDArray[np.bool_], draft_length: int) -> tuple[int, int]:
    """Return how many tokens come after the first, which a prompt's own pass gives, and in how many steps."""
    position, num_steps = 1, 0
    while position < len(matched):
        drafts = matched[position : position + draft_length]
        position += 1 + (len(drafts) if drafts.all() else int(drafts.argmin()))
        num_steps += 1
    return len(matched) - 1, num_steps


def answers_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of what names a draft model, and a target's answers."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("draft", help="preset or file of the draft model")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--answers", type=Path, nargs="+", required=True)
    return parser


def main() -> None:
    """Print a line for each variant and route."""
    parser = answers_parser(__doc__)
    parser.add_argument("--variants", nargs="+", default=VARIANTS, help="WEIGHTS/VOCABULARY")
    parser.add_argument("--draft-lengths", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    params = SamplingParams(temperature=arguments.temperature, top_p=arguments.top_p)
    answers = read_answers(arguments.prompts, arguments.answers)
    lengths = arguments.draft_lengths
    print("variant", "route", "answers", "guessed", *(f"k={k}" for k in lengths), sep="\t")
    for variant in arguments.variants:
        draft = load_variant(arguments.draft, variant)
        by_route = defaultdict[str, list[NDArray[np.bool_]]](list)
        for answer in answers:
            by_route[answer.route].append(matches(draft, answer, params, arguments.seed))
        by_route["all"] = [one for route in by_route.values() for one in route]
        for route, found in by_route.items():
            print(variant, route, len(found), *_figures(found, lengths), sep="\t", flush=True)


def _figures(found: list[NDArray[np.bool_]], lengths: Sequence[int]) -> Iterator[str]:
    """Yield the share of tokens guessed, and tokens a step for each draft length."""
    yield f"{np.concatenate(found).mean():.4f}"
    for length in lengths:
        counts = np.array([tokens_per_step(one, length) for one in found]).sum(axis=0)
        yield f"{counts[0] / counts[1]:.3f}"


if __name__ == "__main__":
    main()
