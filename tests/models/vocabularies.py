"""Toy vocabularies, small enough to work out tokens by hand, as the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.models.tokenizer import Tokenizer
from paceline.models.tokenizer_tokens import TokenType, byte_level_bytes

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTE_CHARACTERS = [chr(c) for c in [*_PRINTABLE, *range(0x100, 0x144)]]
"""The 256 characters of byte-level BPE, in the order of GPT-2's table."""

MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3")
JOINED = ("he", "ll", "hell", "hello", "Ġw", "12", "123")
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def gguf_keys(**values: Any) -> dict[str, Any]:
    """Return keys under `tokenizer.ggml.`; a value of None leaves its key out."""
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}


def byte_level(
    user_defined: Sequence[str] = (), control: Sequence[str] = CONTROL, num_padding: int = 0, **changes: Any
) -> dict[str, Any]:
    """Return a byte-level BPE vocabulary: 256 bytes, the joins, then control, user-defined and padding."""
    strings = [*BYTE_CHARACTERS, *JOINED, *control, *user_defined]
    padding = [f"[PAD{len(strings) + index}]" for index in range(num_padding)]
    kinds = [
        *[TokenType.NORMAL] * (256 + len(JOINED)),
        *[TokenType.CONTROL] * len(control),
        *[TokenType.USER_DEFINED] * len(user_defined),
        *[TokenType.UNUSED] * num_padding,
    ]
    keys = {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": strings + padding,
        "token_type": [int(kind) for kind in kinds],
        "merges": list(MERGES),
        "bos_token_id": strings.index("<|endoftext|>") if "<|endoftext|>" in control else None,
        "eos_token_id": strings.index("<|im_end|>") if "<|im_end|>" in control else None,
        "add_bos_token": False,
    }
    return gguf_keys(**keys | changes)


def sentencepiece(
    scored: Mapping[str, float], user_defined: Sequence[str] = (), **changes: Any
) -> dict[str, Any]:
    """Return a SentencePiece vocabulary: <unk>, <s>, </s>, 256 bytes, user-defined and scored tokens."""
    strings = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *user_defined, *scored]
    kinds = [
        TokenType.UNKNOWN,
        *[TokenType.CONTROL] * 2,
        *[TokenType.BYTE] * 256,
        *[TokenType.USER_DEFINED] * len(user_defined),
        *[TokenType.NORMAL] * len(scored),
    ]
    keys = {
        "model": "llama",
        "tokens": strings,
        "token_type": [int(kind) for kind in kinds],
        "scores": [0.0] * (259 + len(user_defined)) + list(scored.values()),
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return gguf_keys(**keys | changes)


def strings_of(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """Return tokens by name, which reads better than ids in a test."""
    return [tokenizer.token_string(token_id) for token_id in token_ids]


def byte_token(byte: int) -> int:
    """Return the id that a byte has in every `byte_level` vocabulary."""
    return next(index for index, c in enumerate(BYTE_CHARACTERS) if byte_level_bytes(c)[0] == byte)
