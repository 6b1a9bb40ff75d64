"""Count which tokens of a vocabulary are frequent, for `paceline.models.frequent_tokens`.

    python -m benchmarks.count_tokens qwen2.5-coder-1.5b-instruct --answers answers.jsonl --out tokens.npz

Text is what lies on the machine anyway: sources and documents of Python, of installed packages and of the
Text is what lies on the machine anyway: sources and documents of Python, of packages and of the
a weight, so that the largest does not drown the others; ids that no text has follow in the order of the
vocabulary, whose merges were learnt most frequent first.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.models.download import resolve
from paceline.models.frequent_tokens import fingerprint
from paceline.models.gguf_file import GGUFFile
from paceline.models.tokenizer import Tokenizer

STDLIB, PACKAGES = (Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib"))
SHARE = Path("/usr/share")
MAX_FILE_BYTES = 300_000


@dataclass(frozen=True)
class Source:
    """Files of one kind of text."""

    name: str
    weight: float
    folder: Path
    patterns: tuple[str, ...]
    max_bytes: int = 12_000_000


DOCUMENTS = ("**/*.md", "**/README*", "**/NEWS*", "**/*.txt*", "**/*.html")
RUST_BOOKS = ("toolchains/stable*/share/doc/rust/html/*/*.html",)
SOURCES = (
    Source("Python's standard library", 0.15, STDLIB, ("*.py", "*/*.py")),
    Source("packages' Python code", 0.1, PACKAGES, ("[a-m]*/**/*.py", "[n-z]*/**/*.py"), 20_000_000),
    Source("packages' documents", 0.1, PACKAGES, ("**/*.md", "**/*.rst", "**/METADATA")),
    Source("the system's documents", 0.1, SHARE / "doc", DOCUMENTS),
    Source("manuals", 0.1, SHARE, ("info/*.gz", "man/man[1-8]/*.gz")),
    Source("C headers", 0.03, Path("/usr/include"), ("*.h", "*/*.h"), 4_000_000),
    Source("Perl code and documents", 0.03, SHARE / "perl", ("**/*.pod", "**/*.pm"), 8_000_000),
    Source("Rust's books", 0.1, Path.home() / ".rustup", RUST_BOOKS),
)
ANSWERS_WEIGHT, PRIOR_WEIGHT = 0.25, 0.1
"""The vocabulary's own order counts like a text in which id i is as frequent as 1 / (i + 100)."""


def texts(source: Source) -> Iterator[str]:
    """Yield the source's files, up to its share of bytes."""
    left = source.max_bytes
    for pattern in source.patterns:
        for path in sorted(source.folder.glob(pattern)):
            if left <= 0:
                return
            if not path.is_file() or path.is_symlink():
                continue
            raw = path.read_bytes()[:MAX_FILE_BYTES]
            if path.suffix == ".gz":
                raw = gzip.decompress(path.read_bytes())[:MAX_FILE_BYTES]
            text = raw.decode("utf-8", "ignore")
            if path.suffix == ".html":
                text = html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]*>", "", text, flags=re.DOTALL))
            left -= len(text)
            yield text


def shares(counts: Counter[int], size: int) -> np.ndarray:
    """Return relative frequencies, float64 [size]."""
    found = np.zeros(size)
    for token_id, count in counts.items():
        found[token_id] = count
    return found / max(1.0, found.sum())


def main() -> None:
    """Count, rank and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="preset or GGUF file with the vocabulary")
    parser.add_argument("--answers", type=Path, help="JSON lines with token_ids")
    parser.add_argument("--size", type=int, default=32768)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(resolve(arguments.model)).metadata)
    size = tokenizer.num_real_tokens
    total = PRIOR_WEIGHT * shares(Counter({i: 10**6 // (i + 100) for i in range(size)}), size)
    for source in SOURCES:
        counts: Counter[int] = Counter()
        for text in texts(source):
            counts.update(tokenizer.encode(text))
        print(f"{source.name}: {counts.total():,} tokens, {len(counts):,} different", flush=True)
        total += source.weight * shares(counts, size)
    if arguments.answers is not None:
        lines = [json.loads(line) for line in arguments.answers.read_text("utf-8").splitlines()]
        counts = Counter(token_id for line in lines for token_id in line.get("token_ids", ()))
        print(f"answers: {counts.total():,} tokens, {len(counts):,} different")
        total += ANSWERS_WEIGHT * shares(counts, size)
    total[[i for i in tokenizer.special_tokens.values() if i < size]] = 0.0  # added to every list anyway
    ranked = np.argsort(-total, kind="stable")[: arguments.size].astype(np.uint32)
    np.savez_compressed(arguments.out, token_ids=ranked, fingerprint=fingerprint(tokenizer))


if __name__ == "__main__":
    main()
