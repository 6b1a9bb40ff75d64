"""Keeps what people typed apart from what a chat template writes, while the template mixes the two.

Where a string of the conversation looks like a special token, the first character of the look-alike is
replaced, before rendering, by a character that is nowhere else. What the template wrote is then all that can
be a special token; the characters are put back once those have been found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from paceline.errors import InvalidParameterError
from paceline.models.tokenizer_split import TokenSplitter


def _candidates() -> Iterator[str]:
    """Yield characters that mean nothing: Unicode's noncharacters, then private ones."""
    in_planes = (plane * 0x10000 + last for plane in range(17) for last in (0xFFFE, 0xFFFF))
    return map(chr, itertools.chain(range(0xFDD0, 0xFDF0), in_planes, range(0xF0000, 0x10FFFE)))


def guard(value: Any, special: TokenSplitter, taken: frozenset[str]) -> tuple[Any, dict[str, str]]:
    """Return `value` with the special-token look-alikes in its strings broken, and how to undo it.

    Args:
        value: strings, and sequences and mappings of them, nested; anything else is returned as it is.
        special: finds special tokens.
        taken: characters that must not be used as stand-ins, besides those in `value`.

    Returns:
        The guarded value, and stand-in to character for every stand-in used; empty where nothing was broken.

    Raises:
        InvalidParameterError: no character is left to be a stand-in.
    """
    starts = {text[place] for text in _strings(value) for place in special.starts(text)}
    if not starts:
        return value, {}
    used = taken.union(*_strings(value))
    free = (character for character in _candidates() if character not in used)
    stand_ins = dict(zip(sorted(starts), free, strict=False))
    if len(stand_ins) < len(starts):
        raise InvalidParameterError(
            given="messages that use every private and every meaningless character of Unicode",
            expected="messages that leave some of them free",
            remedy="Leave them out",
        )

    def broken(text: str) -> str:
        places = set(special.starts(text))
        return "".join(stand_ins[c] if i in places else c for i, c in enumerate(text)) if places else text

    return _mapped(value, broken), {stand_in: character for character, stand_in in stand_ins.items()}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _strings(key)
            yield from _strings(entry)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for entry in value:
            yield from _strings(entry)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(entry, change) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_mapped(entry, change) for entry in value]
    return value
