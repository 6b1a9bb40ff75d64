"""Text that lies on a machine anyway, for `benchmarks.count_tokens`: code, documents, manuals."""

from __future__ import annotations

import gettext
import gzip
import html
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STDLIB, PACKAGES = (Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib"))
SHARE, LIBRARIES = Path("/usr/share"), Path("/usr/lib")
MAX_FILE_BYTES = 200_000
MAX_FILES_A_FOLDER = 200
"""A folder of thousands of like pages would fill its source's share alone."""


@dataclass(frozen=True)
class Source:
    """Files of one kind of text."""

    name: str
    weight: float
    folder: Path
    patterns: tuple[str, ...]
    max_characters: int = 5_000_000


DOCUMENTS = ("**/*.md", "**/README*", "**/NEWS*", "**/*.txt*", "**/*.html")
RUST_BOOKS = ("toolchains/stable*/share/doc/rust/html/*/*.html",)
LANGUAGES = "cs de es fr it ja ko nl pl pt pt_BR ru sv tr uk vi zh_CN"
MESSAGES = tuple(f"locale/{language}/LC_MESSAGES/*.mo" for language in LANGUAGES.split())
SOURCES = (
    Source("Python's standard library", 0.15, STDLIB, ("*.py", "*/*.py")),
    Source("packages' Python code", 0.15, PACKAGES, ("[a-m]*/**/*.py", "[n-z]*/**/*.py"), 8_000_000),
    Source("packages' documents", 0.06, PACKAGES, ("**/*.md", "**/*.rst", "**/METADATA")),
    Source("the system's documents", 0.04, SHARE / "doc", DOCUMENTS),
    Source("manuals", 0.03, SHARE, ("info/*.gz", "man/man[1-8]/*.gz")),
    Source("manuals in other languages", 0.02, SHARE, ("man/[!m]*/man[1-8]/*.gz",), 20_000_000),
    Source("programs' messages in other languages", 0.02, SHARE, MESSAGES, 40_000_000),
    Source("JavaScript", 0.03, LIBRARIES, ("node_modules/**/*.js",)),
    Source("C headers", 0.01, Path("/usr/include"), ("*.h", "*/*.h"), 4_000_000),
    Source("Perl code and documents", 0.01, SHARE / "perl", ("**/*.pod", "**/*.pm"), 4_000_000),
    Source("Rust's books", 0.07, Path.home() / ".rustup", RUST_BOOKS),
)


def texts(source: Source) -> Iterator[str]:
    """Yield the source's files, up to its share of characters."""
    left, taken = source.max_characters, dict[Path, int]()
    for pattern in source.patterns:
        for path in sorted(source.folder.glob(pattern)):
            taken[path.parent] = taken.get(path.parent, 0) + 1
            if taken[path.parent] > MAX_FILES_A_FOLDER or path.is_symlink() or not path.is_file():
                continue
            text = _read(path)
            left -= len(text)
            if left < 0:
                return
            yield text


def _read(path: Path) -> str:
    if path.suffix == ".mo":
        return _translations(path)
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    text = raw[:MAX_FILE_BYTES].decode("utf-8", "ignore")
    if path.suffix == ".html":
        return html.unescape(re.sub(r"<(script|style).*?</\1>|<[^>]*>", "", text, flags=re.DOTALL))
    return text


def _translations(path: Path) -> str:
    """Return the translated messages of a catalogue; none of one that names a wrong encoding."""
    try:
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)
    except (UnicodeDecodeError, IndexError):
        return ""
    # The class has no other way to list what it holds.
    return "\n".join(str(text) for text in catalogue._catalog.values())[:MAX_FILE_BYTES]
