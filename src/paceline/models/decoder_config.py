"""One frozen description of a decoder; what tells Llama, Qwen2, Qwen3 and Gemma 3 apart is all in here.

The readers of it are `gguf_config.py` and `safetensors_config.py`. What a file asks for and this record
cannot say is refused there, and never ignored.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from paceline.errors import UnsupportedModelError
from paceline.models.rotary_scaling import Llama3, Yarn

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
MAX_LAYERS = 1_000
"""More than any model has; a greater number in a file is damage, and would be counted through before a tensor
is found missing."""


class RotaryLayout(enum.Enum):
    """Which two values of a head are turned together."""

    HALVES = "halves"
    """i and i + head_dim / 2: Qwen and Gemma everywhere, Llama in safetensors."""
    INTERLEAVED = "interleaved"
    """2 i and 2 i + 1: Llama in GGUF, whose converter reorders the rows of q and k."""


class Activation(enum.Enum):
    """What the gate goes through before it multiplies the up projection."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary position embedding (Su et al. 2021) of one kind of layer."""

    base: float
    linear_factor: float = 1.0
    """Positions are divided by this (linear scaling, Chen et al. 2023)."""
    scaling: Yarn | Llama3 | None = None
    """Scaling that differs between frequencies; a file may hold divisors of them instead, as a tensor."""
    attention_factor: float = 1.0
    """Factor on cos and sin, so its square is one on attention scores."""

    def context_length(self, stated: int) -> int:
        """Return how many positions a model covers whose file states a number.

        Files to which YaRN was added by hand still state the original one.
        """
        return max(stated, self.scaling.context_length) if isinstance(self.scaling, Yarn) else stated


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and variations of a decoder-only transformer."""

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding, padding rows included."""
    context_length: int
    norm_eps: float
    rotary: Rotary
    rotary_layout: RotaryLayout
    local_rotary: Rotary | None = None
    """Rotary of the sliding layers where it differs from the others'."""
    sliding_window: int | None = None
    """A sliding layer's query sees this many positions, its own included."""
    sliding_layers: frozenset[int] = frozenset()
    """Layers with the sliding window; the others see everything before them."""
    attention_scale: float | None = None
    """Factor on the attention scores; none is head_dim ** -0.5."""
    activation: Activation = Activation.SILU
    embedding_scale: float = 1.0
    has_qkv_bias: bool = False
    """Biases of q, k and v must be there (where they are not required, they are used if present)."""
    has_qk_norm: bool = False
    has_post_norms: bool = False
    """A norm after attention and after the feed-forward part, before each is added (Gemma)."""
    norm_offset: float = 0.0
    """Added to every norm weight at load: safetensors of Gemma hold weight - 1, GGUF the weight itself."""

    @property
    def score_scale(self) -> float:
        """Return the factor on the attention scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def window_of(self, layer: int) -> int | None:
        """Return how many positions a query of this layer sees; none is all."""
        return self.sliding_window if layer in self.sliding_layers else None

    def rotary_of(self, layer: int) -> Rotary:
        """Return this layer's rotary embedding."""
        is_local = layer in self.sliding_layers and self.local_rotary is not None
        return self.local_rotary if is_local and self.local_rotary else self.rotary


def unsupported_family(name: object, where: str) -> UnsupportedModelError:
    """Return the error for an architecture that is not one of ours."""
    return UnsupportedModelError(
        given=f"architecture {name!r} in {where}",
        expected=f"one of {', '.join(FAMILIES)}",
        remedy="Use a model of one of those families",
    )


def unsupported_feature(given: str, expected: str) -> UnsupportedModelError:
    """Return the error for something in a known family that would have to be ignored."""
    return UnsupportedModelError(given=given, expected=expected, remedy="Use a model without it")
