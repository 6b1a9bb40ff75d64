"""How a model is to be held and computed, whatever file it comes from."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kernels(enum.StrEnum):
    """Which arithmetic runs a model on a CPU."""

    AUTO = "auto"
    """Native where it was built and the model's tensor types are packed as they are; else the reference."""
    NATIVE = "native"
    """int8 activations on packed weights, float16 KV."""
    REFERENCE = "reference"
    """float32 PyTorch operators, which the native ones are checked against."""


class Weights(enum.StrEnum):
    """What matrices are held as."""

    FILE = "file"
    """As the file has them."""
    INT8 = "int8"
    """Floating-point ones in 8 bits; quantised ones as the file has them."""
    INT4 = "int4"
    """Those of more than 4 bits in 4: less to read, and other numbers. For a draft model."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What `load_model` is asked for beside the file."""

    kernels: Kernels = Kernels.AUTO
    weights: Weights = Weights.FILE
    needs_weights: bool = True
    """Whether it is an error where `weights` cannot be had; else they are then as the file has them."""
    reduce_vocabulary: bool = False
    """Compute logits of the most frequent tokens only, where a list for the vocabulary is at hand; the other
    tokens get minus infinity. For a draft model."""
