"""Perplexity of the native kernels against the float32 reference, on a fixed text.

    python -m verify.perplexity                       # every preset
    python -m verify.perplexity smollm2-135m-instruct --windows 2

The text is that of examples/routes.jsonl: questions, articles and code, cut into windows that start afresh.
The weights are the same numbers on both sides; what differs is the rounding of activations to 8 bits and of
keys and values to 16. Exit code 1 where a ratio leaves 1 by more than half a percent.

A text of some thousand tokens settles a ratio to a few tenths of a percent only: the standard error beside
it, of the tokens' differences, says how far. The divergence (Kullback-Leibler, from the reference's
distribution to the native one's, mean over all positions) does not depend on which tokens the text happens to
have, and is what the logarithm of the ratio comes to on text that the reference itself would write.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Comparison:
    """Perplexities of the same tokens, and how far the two models' distributions are apart."""

    native: float
    reference: float
    standard_error: float
    """Of the logarithm of their ratio."""
    divergence: float
    """Mean Kullback-Leibler divergence, nats a token."""

    @property
    def excess(self) -> float:
        """How far the ratio is above 1."""
        return self.native / self.reference - 1

    def __str__(self) -> str:
        return (
            f"native {self.native:.4f}, reference {self.reference:.4f}, {self.excess:+.3%} "
            f"(standard error {self.standard_error:.3%}), divergence {self.divergence:.5f}"
        )


def log_probabilities(model: CausalModel, token_ids: Sequence[int]) -> torch.Tensor:
    """Return the distribution after each token but the last, float32 [num_tokens - 1, vocab]."""
    num_blocks = -(-len(token_ids) // 16)
    part = SequenceSlice(token_ids, 0, range(num_blocks), len(token_ids))
    return model.forward([part], model.allocate_kv(num_blocks, 16))[:-1].log_softmax(-1)


def compare(path: Path, count: int) -> Comparison:
    """Run both models over the text, window by window."""
    file = GGUFFile.open(path)
    native, reference = (
        choose_decoder(*gguf_decoder(file), torch.device("cpu"), LoadOptions(kernels))
        for kernels in (Kernels.NATIVE, Kernels.REFERENCE)
    )
    losses, differences, divergences = [], [], []
    for token_ids in windows(Tokenizer.from_gguf(file.metadata), count):
        ours, theirs = log_probabilities(native, token_ids), log_probabilities(reference, token_ids)
        following = torch.tensor(token_ids[1:])[:, None]
        of_text = theirs.gather(1, following).double()
        losses.append(-of_text)
        differences.append(of_text - ours.gather(1, following).double())
        divergences.append((theirs.exp() * (theirs - ours)).sum(1, dtype=torch.float64))
    loss, difference = torch.cat(losses).mean(), torch.cat(differences)
    return Comparison(
        native=float((loss + difference.mean()).exp()),
        reference=float(loss.exp()),
        standard_error=float(difference.std() / len(difference) ** 0.5),
        divergence=float(torch.cat(divergences).mean()),
    )


def main() -> int:
    """Compare and print; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=PRESETS, help="presets or GGUF files")
    parser.add_argument("--windows", type=int, default=16, help=f"texts of {WINDOW} tokens, at most")
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.models:
        found = compare(resolve(name), arguments.windows)
        failed += abs(found.excess) > MOST_OFF
        print(f"{name}: {found}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
