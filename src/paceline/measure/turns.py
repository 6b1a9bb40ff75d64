"""Which settings take turns, in which order, and with which requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from paceline.errors import ConfigError
from paceline.measure.load_mode import MOST_DRAFTS, Mode

AUTO, OFF = "auto", "off"

T = TypeVar("T")


def in_slices(requests: Sequence[T], size: int) -> list[Sequence[T]]:
    """Cut requests into slices of so many each.

    A last one that would be shorter joins the one before it, since with fewer requests than clients it would
    be another load.

    Args:
        requests: in order.
        size: 0 leaves them in one.
    """
    count = max(1, len(requests) // size) if size else 1
    return [requests[n * size : (n + 1) * size if n < count - 1 else None] for n in range(count)]


def in_turns(settings: Sequence[Mode], repeat: int, cell: int) -> Iterator[Mode]:
    """Yield the settings, from another one on for each repeat (or slice) and cell."""
    start = (repeat + cell) % len(settings)
    yield from (*settings[start:], *settings[:start])


def slice_size(asked: int | None, concurrency: int) -> int:
    """Return the requests of a slice at a concurrency: one for each client unless asked for otherwise, and 0
    for whole runs.

    Raises:
        ConfigError: fewer are asked for than there are clients, some of whom would never work.
    """
    if asked is None:
        return concurrency
    if 0 < asked < concurrency:
        raise ConfigError(
            given=f"--slice {asked} with {concurrency} clients",
            expected="0, or a request for each client at least",
            remedy="Give --slice 0 for whole runs, a larger number, or leave it out",
        )
    return asked


def parse_settings(text: str, drafters: Sequence[str]) -> tuple[Mode, ...]:
    """Return the settings of a list such as "off,auto,model:2,suffix:4".

    Raises:
        ConfigError: one is spelt wrong, has no such drafter or comes twice, or "off" or "auto" is missing.
    """
    words = [word.strip() for word in text.split(",")]
    modes = tuple(_parse(word, drafters) for word in words)
    if len(set(words)) < len(words) or not {AUTO, OFF} <= set(words):
        raise _refuse(text, "each setting once, off and auto among them")
    return modes


def _parse(word: str, drafters: Sequence[str]) -> Mode:
    if word == OFF:
        return Mode()
    if word == AUTO:
        return Mode(label=AUTO, is_auto=True)
    name, _, length = word.partition(":")
    if name not in drafters or not length.isdecimal() or not 1 <= int(length) <= MOST_DRAFTS:
        raise _refuse(word, f"off, auto, or DRAFTER:K with K from 1 to 64 and one of {', '.join(drafters)}")
    return Mode(int(length), name, word)


def _refuse(given: str, expected: str) -> ConfigError:
    return ConfigError(
        given=f"--settings {given}",
        expected=expected,
        remedy="Write --settings off,auto,model:2,model:4,suffix:4",
    )
