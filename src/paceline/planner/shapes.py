"""Shapes of well-known models, for plans from a number of parameters alone; and bytes of number formats."""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.errors import ConfigError

BYTES_OF = {
    "f32": 4.0,
    "bf16": 2.0,
    "f16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
    "q8_0": 34 / 32,
    "q6_k": 210 / 256,
    "q4_k": 144 / 256,
    "q4_0": 18 / 32,
}
"""Bytes of one number; GGUF's formats with their scales."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the size of keys and values depends on."""

    name: str
    params_b: float
    """Thousand millions."""
    num_layers: int
    num_kv_heads: int
    head_size: int
    vocab_size: int


KNOWN = (
    Shape("Qwen2.5 0.5B", 0.49, 24, 2, 64, 151_936),
    Shape("Llama 3.2 1B", 1.24, 16, 8, 64, 128_256),
    Shape("Llama 3.2 3B", 3.21, 28, 8, 128, 128_256),
    Shape("Llama 3.1 8B", 8.03, 32, 8, 128, 128_256),
    Shape("Qwen2.5 14B", 14.8, 48, 8, 128, 152_064),
    Shape("Qwen2.5 32B", 32.8, 64, 8, 128, 152_064),
    Shape("Llama 3.1 70B", 70.6, 80, 8, 128, 128_256),
    Shape("Llama 3.1 405B", 405.9, 126, 8, 128, 128_256),
)
"""From the models' own config.json."""


def nearest_shape(params_b: float) -> Shape:
    """Return the known model whose size is nearest, in proportion.

    Raises:
        ConfigError: the size is not positive.
    """
    if not 0 < params_b < math.inf:
        raise ConfigError(
            given=f"{params_b:g} thousand million parameters",
            expected="more than 0",
            remedy="Write 7 for a model of 7 thousand million parameters",
        )
    return min(KNOWN, key=lambda shape: abs(math.log(shape.params_b / params_b)))
