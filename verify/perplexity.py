"""Perplexity of the native kernels against the float32 reference, on a fixed text.

    python -m verify.perplexity                       # every preset
    python -m verify.perplexity smollm2-135m-instruct --windows 2

The text is that of examples/routes.jsonl: questions, articles and code, cut into windows that start afresh.
The weights are the same numbers on both sides; what differs is the rounding of activations to 8 bits and of
keys and values to 16. Exit code 1 where a ratio leaves 1 by more than half a percent.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from paceline.cli.input_file import read_requests
from paceline.models.build import choose_decoder
from paceline.models.download import resolve
from paceline.models.gguf_file import GGUFFile
from paceline.models.interface import CausalModel, SequenceSlice
from paceline.models.load import gguf_decoder
from paceline.models.options import Kernels, LoadOptions
from paceline.models.tokenizer import Tokenizer

TEXT = Path(__file__).parent.parent / "examples" / "routes.jsonl"
WINDOW = 512
MOST_OFF = 0.005
PRESETS = (
    "qwen2.5-coder-1.5b-instruct",
    "qwen2.5-coder-0.5b-instruct",
    "smollm2-135m-instruct",
    "gemma-3-270m",
)


def windows(tokenizer: Tokenizer, count: int) -> Iterator[list[int]]:
    """Yield token ids of the text, WINDOW at a time, as evenly spread over it as `count` windows can be."""
    text = "\n\n".join(str(m["content"]) for r in read_requests(TEXT) for m in r.messages or ())
    token_ids = tokenizer.encode(text)
    size = WINDOW - tokenizer.add_bos
    prefix = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    num_whole = len(token_ids) // size
    for number in range(min(count, num_whole)):
        start = number * num_whole // min(count, num_whole) * size
        yield [*prefix, *token_ids[start : start + size]]


def loss(model: CausalModel, token_ids: Sequence[int]) -> float:
    """Return the mean negative log-likelihood of all tokens but the first, in nats."""
    num_blocks = -(-len(token_ids) // 16)
    part = SequenceSlice(token_ids, 0, range(num_blocks), len(token_ids))
    logits = model.forward([part], model.allocate_kv(num_blocks, 16))[:-1].double()
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(token_ids[1:])))


def compare(path: Path, count: int) -> tuple[float, float]:
    """Return the perplexities of the native kernels and of the reference."""
    file = GGUFFile.open(path)
    texts = list(windows(Tokenizer.from_gguf(file.metadata), count))
    losses = []
    for kernels in (Kernels.NATIVE, Kernels.REFERENCE):
        model = choose_decoder(*gguf_decoder(file), torch.device("cpu"), LoadOptions(kernels))
        losses.append(sum(loss(model, text) for text in texts) / len(texts))
        del model
        gc.collect()
    return math.exp(losses[0]), math.exp(losses[1])


def main() -> int:
    """Compare and print; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=PRESETS, help="presets or GGUF files")
    parser.add_argument("--windows", type=int, default=8, help=f"texts of {WINDOW} tokens")
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.models:
        native, reference = compare(resolve(name), arguments.windows)
        off = native / reference - 1
        failed += abs(off) > MOST_OFF
        print(f"{name}: native {native:.4f}, reference {reference:.4f}, {off:+.3%}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
