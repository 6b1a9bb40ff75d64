"""What requests cost one another: a long prompt among streams, a beginning that two requests share, and what
speculation adds to the time to the first token.

    python -m benchmarks.shared_steps --target qwen2.5-coder-1.5b-instruct --draft qwen2.5-coder-0.5b-instruct

A JSON object a line. Intervals are those between a stream's chunks, which speculation may make several tokens
long; the prompts are the repository's own pages. For the time to the first token speculation on and off take
turns, and medians are of all rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.llm import LLM
from paceline.records import GenerationResult, SamplingParams, SpeculationParams

ROOT = Path(__file__).parents[1]
OFF = SpeculationParams(enabled=False)
NUM_STREAMS = 7
PARTS = ("joining-off", "joining-on", "sharing", "first-token")


def text_ids(llm: LLM) -> list[int]:
    """Return some thousand tokens of English and code."""
    pages = [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md", ROOT / "src/paceline/records.py"]
    return llm.encode("\n\n".join(page.read_text(encoding="utf-8") for page in pages))


def joining(llm: LLM, num_prompt: int, speculation: SpeculationParams) -> dict[str, Any]:
    """Return intervals of seven streams before and while a prompt of `num_prompt` tokens joins."""
    engine, text = llm.loaded.engine, text_ids(llm)
    engine.clear_prefix_cache()
    params = SamplingParams(max_tokens=1000, ignore_eos=True)
    names = [f"stream-{i}" for i in range(NUM_STREAMS)]
    for i, name in enumerate(names):
        llm.submit(text[40 * i : 40 * i + 32], params, speculation=speculation, request_id=name)
    seen: set[str] = set()
    while len(seen) < NUM_STREAMS:
        seen |= {chunk.request_id for chunk in engine.step() if chunk.token_ids}
    for _ in range(3):
        engine.step()
    before = [interval(llm, names) for _ in range(15)]
    submitted = time.perf_counter()
    llm.submit(text[:num_prompt], SamplingParams(max_tokens=1), speculation=OFF, request_id="long")
    during: list[float] = []
    while any(sequence.request.id == "long" for sequence in engine._scheduler):
        during.append(interval(llm, names))
    ttft = time.perf_counter() - submitted
    for name in names:
        engine.abort(name, is_reported=False)
    ratio = float(np.percentile(during, 95) / np.percentile(before, 95))
    return {
        "itl_before_ms": percentiles(before),
        "itl_during_ms": percentiles(during),
        "p95_ratio": ratio,
        "num_steps": len(during),
        "ttft_s": ttft,
    }


def interval(llm: LLM, names: Sequence[str]) -> float:
    """Run one step, in which every stream gets something, and return its seconds."""
    begin = time.perf_counter()
    got = {chunk.request_id for chunk in llm.loaded.engine.step() if chunk.token_ids}
    assert got >= set(names), "a stream was left out"
    return time.perf_counter() - begin


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return the 50th and 95th, in milliseconds."""
    return {f"p{p}": round(1e3 * float(np.percentile(seconds, p)), 1) for p in (50, 95)}


def sharing(llm: LLM, num_shared: int, num_tokens: int) -> dict[str, Any]:
    """Return what the second of two requests with one beginning saves, and its acceptance."""
    text = text_ids(llm)
    llm.loaded.engine.clear_prefix_cache()
    prompts = [[*text[:num_shared], *llm.encode(f"\n\nIn short, {word}:")] for word in ("parts", "errors")]
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    first, second = (llm.generate(prompt, params)[0] for prompt in prompts)
    llm.loaded.engine.clear_prefix_cache()
    (alone,) = llm.generate(prompts[1], params)
    return {
        "ttft_first_s": first.timing.ttft_s,
        "ttft_second_s": second.timing.ttft_s,
        "ttft_ratio": ratio_of(second, first),
        "num_cached_tokens": second.num_cached_tokens,
        "acceptance_rate": second.speculation.acceptance_rate,
        "acceptance_rate_without_cache": alone.speculation.acceptance_rate,
        "is_identical": second.token_ids == alone.token_ids,
    }


def first_tokens(llm: LLM, num_prompt: int, rounds: int) -> dict[str, Any]:
    """Return median times to the first token with speculation on and off."""
    prompt = text_ids(llm)[:num_prompt]
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    found: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(rounds):
        for name, speculation in (("off", OFF), ("on", llm.settings.speculation_params)):
            llm.loaded.engine.clear_prefix_cache()
            (result,) = llm.generate(prompt, params, speculation=speculation)
            found[name].append(result.timing.ttft_s or 0.0)
    medians = {name: statistics.median(values) for name, values in found.items()}
    return {"ttft_off_s": medians["off"], "ttft_on_s": medians["on"], "ratio": medians["on"] / medians["off"]}


def ratio_of(one: GenerationResult, other: GenerationResult) -> float:
    """Return the ratio of two times to the first token."""
    return (one.timing.ttft_s or 0.0) / (other.timing.ttft_s or 1.0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--num-prompt", type=int, default=2000, help="length of the prompt that joins")
    parser.add_argument("--mixed-prefill-ratio", type=float, default=1.5)
    parser.add_argument("--only", choices=PARTS, nargs="*", default=PARTS)
    options = parser.parse_args()
    settings = {"context_length": 4096, "mixed_prefill_ratio": options.mixed_prefill_ratio}
    with LLM(options.target, options.draft, **settings) as llm:
        parts = {
            "joining-off": lambda: joining(llm, options.num_prompt, OFF),
            "joining-on": lambda: joining(llm, options.num_prompt, llm.settings.speculation_params),
            "sharing": lambda: sharing(llm, 500, 64),
            "first-token": lambda: first_tokens(llm, 300, 5),
        }
        for name in options.only:
            print(json.dumps({"part": name, **parts[name]()}), flush=True)


if __name__ == "__main__":
    main()
