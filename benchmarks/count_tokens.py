"""Count which tokens of a vocabulary are frequent, for `paceline.models.frequent_tokens`.

    python -m benchmarks.count_tokens qwen2.5-coder-1.5b-instruct \\
        --prompts prompts.jsonl --answers answers.jsonl --out src/paceline/models/data/qwen2.5.npz

Each source of text has a weight, so that the largest does not drown the others: text that lies on the
machine anyway (`benchmarks.local_text`), prompts as `paceline generate --input` reads them, and the model's
own answers, as `paceline generate --json` prints them, which are nearest to what a draft model has to
draft. Ids that no text has follow in the order of the vocabulary, whose merges were learnt most frequent
first.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.local_text import SOURCES, texts

from paceline.models.download import resolve
from paceline.models.frequent_tokens import fingerprint
from paceline.models.gguf_file import GGUFFile
from paceline.models.tokenizer import Tokenizer

PROMPTS_WEIGHT, ANSWERS_WEIGHT, PRIOR_WEIGHT = 0.15, 0.25, 0.3
"""The vocabulary's own order counts like a text in which id i is as frequent as 1 / (i + 1000)."""
DEFAULT_SIZE = 49152


def shares(counts: Counter[int], size: int) -> np.ndarray:
    """Return relative frequencies, float64 [size]."""
    found = np.zeros(size)
    for token_id, count in counts.items():
        found[token_id] = count
    return found / max(1.0, found.sum())


def json_lines(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the objects of files with one a line."""
    for path in paths:
        for line in path.read_text("utf-8").split("\n"):
            if line.strip():
                yield json.loads(line)


def main() -> None:
    """Count, rank and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="preset or GGUF file with the vocabulary")
    parser.add_argument("--prompts", type=Path, nargs="*", default=[], help="JSON lines with messages")
    parser.add_argument("--answers", type=Path, nargs="*", default=[], help="JSON lines with token_ids")
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(resolve(arguments.model)).metadata)
    size = tokenizer.num_real_tokens
    total = PRIOR_WEIGHT * shares(Counter({i: 10**9 // (i + 1000) for i in range(size)}), size)
    for name, weight, counts in _counted(tokenizer, arguments.prompts, arguments.answers):
        print(f"{name}: {counts.total():,} tokens, {len(counts):,} different", flush=True)
        total += weight * shares(counts, size)
    total[[i for i in tokenizer.special_tokens.values() if i < size]] = 0.0  # added to every list anyway
    ranked = np.argsort(-total, kind="stable")[: arguments.size].astype(np.uint32)
    np.savez_compressed(arguments.out, token_ids=ranked, fingerprint=fingerprint(tokenizer))


def _counted(
    tokenizer: Tokenizer, prompts: list[Path], answers: list[Path]
) -> Iterator[tuple[str, float, Counter[int]]]:
    """Yield the sources' names, weights and counts."""
    for source in SOURCES:
        counts: Counter[int] = Counter()
        for text in texts(source):
            counts.update(tokenizer.encode(text))
        yield source.name, source.weight, counts
    messages = (message for line in json_lines(prompts) for message in line["messages"])
    yield (
        "prompts",
        PROMPTS_WEIGHT,
        Counter(i for message in messages for i in tokenizer.encode(message["content"])),
    )
    # A run's last line is its summary, which has no tokens.
    answered = (line for line in json_lines(answers) if "token_ids" in line)
    yield "answers", ANSWERS_WEIGHT, Counter(i for line in answered for i in line["token_ids"])


if __name__ == "__main__":
    main()
