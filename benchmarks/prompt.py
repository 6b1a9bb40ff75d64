"""Time to process a prompt from an empty cache, in turn with llama.cpp's llama-bench on the same file.

    python -m benchmarks.prompt qwen2.5-coder-1.5b-instruct --tokens 512 --llama-bench PATH/llama-bench

In chunks as the engine's (256 rows), logits for the last token alone, as llama-bench does it too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from paceline.kernels.threads import num_threads, set_num_threads
from paceline.measure.llama_bench import LlamaBench
from paceline.models.download import resolve
from paceline.models.interface import CausalModel, SequenceSlice
from paceline.models.load import load_model

BLOCK_SIZE, CHUNK = 16, 256


def seconds(model: CausalModel, token_ids: list[int]) -> float:
    """Return how long one prompt takes."""
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    kv = model.allocate_kv(num_blocks, BLOCK_SIZE)
    begin = time.perf_counter()
    for start in range(0, len(token_ids), CHUNK):
        end = min(start + CHUNK, len(token_ids))
        part = SequenceSlice(token_ids[start:end], start, range(num_blocks), int(end == len(token_ids)))
        model.forward([part], kv)
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="preset or GGUF file")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-bench", type=Path)
    options = parser.parse_args()
    set_num_threads(None)
    path = resolve(options.model)
    model = load_model(path, "cpu").model
    token_ids = np.random.default_rng(0).integers(0, model.vocab_size // 2, options.tokens).tolist()
    seconds(model, token_ids)
    other = None
    if options.llama_bench is not None:
        other = LlamaBench(options.llama_bench, path, threads=num_threads(), context=0, rows=[options.tokens])
    ours = []
    for _ in range(options.rounds):
        ours.append(1e3 * seconds(model, token_ids))
        if other is not None:
            other.round(1)
    ms = statistics.median(ours)
    print(f"{options.tokens} tokens: {ms:.0f} ms, {1e3 * options.tokens / ms:.1f} tokens/s")
    if other is not None:
        its = other.ms()[options.tokens]
        print(
            f"llama.cpp: {its:.0f} ms, {1e3 * options.tokens / its:.1f} tokens/s; ours / its {ms / its:.2f}"
        )


if __name__ == "__main__":
    main()
