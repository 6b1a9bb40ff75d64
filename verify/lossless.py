"""The proof that speculation changes nothing: real models, every batch shape, token for token.

    python -m verify.lossless                    # the whole matrix, then 40 prompts at k = 5
    python -m verify.lossless --prompts 2 --only-matrix

Each cell answers the same prompts with speculation on and compares with the answers of speculation off, one
at a time: token ids, text, reason to end and log-probabilities. Any difference ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.input_file import InputRequest, read_requests
from paceline.llm import LLM
from paceline.records import GenerationResult, SamplingParams, SpeculationParams

PROMPTS = Path(__file__).parent.parent / "examples" / "routes.jsonl"
TEMPERATURES = (0.0, 0.8)
DRAFT_LENGTHS = (1, 3, 5, 8)
DRAFTERS = ("model", "suffix")
OFF = SpeculationParams(enabled=False)
SEED = 20240817


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request, tokenised once for all cells."""

    id: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of answering the prompts, and how many answers equal those of plain decoding."""

    drafter: str
    draft_length: int
    temperature: float
    batch: int
    """Prompts that are submitted together."""
    num_identical: int
    num_outputs: int
    num_drafted: int
    num_accepted: int
    seconds: float

    @property
    def is_lossless(self) -> bool:
        """Whether every answer is the same."""
        return self.num_identical == self.num_outputs

    def __str__(self) -> str:
        rate = f"{self.num_accepted / self.num_drafted:5.2f}" if self.num_drafted else "    -"
        how = "alone" if self.batch == 1 else f"{self.batch} at once"
        return (
            f"{self.drafter:6}  k={self.draft_length}  T={self.temperature:<3}  {how:9}  "
            f"identical {self.num_identical} of {self.num_outputs}  accepted {rate}  {self.seconds:6.1f} s"
        )


def one_of_each_route(requests: Sequence[InputRequest]) -> list[InputRequest]:
    """Return the first request of each route."""
    first: dict[str | None, InputRequest] = {}
    for request in requests:
        first.setdefault(request.route, request)
    return list(first.values())


def tokenise(
    llm: LLM, requests: Iterable[InputRequest], max_prompt_tokens: int | None = None
) -> list[Prompt]:
    """Return prompts as the model's own chat template makes them; their last tokens if limited."""
    prompts = [Prompt(r.id, tuple(llm.encode_chat(r.messages or ()))) for r in requests]
    if max_prompt_tokens is None:
        return prompts
    return [Prompt(p.id, p.token_ids[-max_prompt_tokens:]) for p in prompts]


def answer(
    llm: LLM,
    prompts: Sequence[Prompt],
    speculation: SpeculationParams,
    temperature: float,
    num_tokens: int,
    batch: int,
) -> list[GenerationResult]:
    """Answer the prompts, `batch` of them at a time, with nothing cached of earlier ones."""
    llm.loaded.engine.clear_prefix_cache()
    params = SamplingParams(temperature=temperature, max_tokens=num_tokens, seed=SEED, logprobs=0)
    results: dict[str, GenerationResult] = {}
    for group in _batched(prompts, batch):
        for prompt in group:
            llm.submit(prompt.token_ids, params, speculation=speculation, request_id=prompt.id)
        results |= {chunk.request_id: chunk.result for chunk in llm.run() if chunk.result is not None}
    return [results[prompt.id] for prompt in prompts]


def is_same(off: GenerationResult, on: GenerationResult) -> bool:
    """Whether two answers agree to the last bit of the last log-probability."""
    return (off.token_ids, off.text, off.finish_reason, off.usage, off.logprobs) == (
        on.token_ids,
        on.text,
        on.finish_reason,
        on.usage,
        on.logprobs,
    )


def check(
    llm: LLM,
    prompts: Sequence[Prompt],
    *,
    num_tokens: int,
    temperatures: Sequence[float] = TEMPERATURES,
    draft_lengths: Sequence[int] = DRAFT_LENGTHS,
    drafters: Sequence[str] = DRAFTERS,
    batches: Sequence[int] = (1, 8),
) -> Iterator[Cell]:
    """Yield one cell after another; the answers of speculation off are computed once a temperature."""
    for temperature in temperatures:
        off = answer(llm, prompts, OFF, temperature, num_tokens, batch=1)
        for drafter, k, batch in itertools.product(drafters, draft_lengths, batches):
            begin = time.perf_counter()
            speculation = SpeculationParams(drafter=drafter, draft_length=k)
            on = answer(llm, prompts, speculation, temperature, num_tokens, batch)
            yield Cell(
                drafter,
                k,
                temperature,
                batch,
                num_identical=sum(map(is_same, off, on)),
                num_outputs=len(off),
                num_drafted=sum(r.speculation.num_drafted for r in on),
                num_accepted=sum(r.speculation.num_accepted for r in on),
                seconds=time.perf_counter() - begin,
            )


def _batched(prompts: Sequence[Prompt], size: int) -> Iterator[Sequence[Prompt]]:
    return (prompts[i : i + size] for i in range(0, len(prompts), size))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="qwen2.5-coder-1.5b-instruct")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of the matrix, one a route")
    parser.add_argument("--only-matrix", action="store_true", help="leave out the 40 prompts at k = 5")
    return parser.parse_args()


def main() -> int:
    """Run the matrix and the wide check; return the exit code."""
    arguments = _arguments()
    requests = read_requests(PROMPTS)
    with LLM(arguments.target, arguments.draft, max_num_seqs=8, context_length=2048) as llm:
        matrix = tokenise(llm, one_of_each_route(requests)[: arguments.prompts])
        cells = check(llm, matrix, num_tokens=arguments.tokens)
        if not arguments.only_matrix:
            wide = check(
                llm,
                tokenise(llm, requests),
                num_tokens=arguments.tokens,
                temperatures=TEMPERATURES,
                draft_lengths=(5,),
                drafters=("model",),
                batches=(8,),
            )
            cells = itertools.chain(cells, wide)
        failed = 0
        for cell in cells:
            print(cell, flush=True)
            failed += not cell.is_lossless
    print("lossless in every cell" if not failed else f"{failed} cells differ from plain decoding")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
