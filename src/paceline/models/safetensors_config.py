"""The decoder that a Hugging Face `config.json` describes.

Both ways of writing rotary parameters are read: `rope_theta` with `rope_scaling`, and `rope_parameters` of
transformers 5. Defaults of absent keys are those of the configuration classes in `transformers`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ModelError, ModelFileError, ModelNotFoundError
from paceline.models.decoder_config import (
    MAX_LAYERS,
    Activation,
    DecoderConfig,
    Rotary,
    RotaryLayout,
    unsupported_family,
    unsupported_feature,
)
from paceline.models.json_file import read_json

_FAMILY_OF = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
# Keys that would change the arithmetic; anything but these values is refused.
_NEUTRAL_VALUES: dict[str, Any] = {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "quantization_config": None,
    "use_bidirectional_attention": False,
    "partial_rotary_factor": 1.0,
}
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


class _Keys:
    """`config.json` with typed access."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path, self.values = path, values

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def table(self, name: str) -> Mapping[str, Any] | None:
        """Return an object; none where it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, "an object")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(name, "a positive whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        return as_number(self, name, self.get(name, default))

    def wrong(self, name: str, expected: str) -> ModelError:
        shown = repr(self.values[name]) if name in self.values else "missing"
        return ModelFileError(
            given=f"{self.path}: {name} is {shown}", expected=expected, remedy="Fetch the model anew"
        )


def as_number(keys: _Keys, name: str, value: Any) -> float:
    """Return a positive finite number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise keys.wrong(name, "a positive number")
    return float(value)


def config_from_folder(folder: Path) -> tuple[DecoderConfig, bool]:
    """Read the decoder's description, and whether the output head is the embedding.

    Raises:
        ModelNotFoundError: there is no `config.json`.
        UnsupportedModelError: an unknown architecture, or a feature that the decoder lacks.
        ModelFileError: a key is missing or makes no sense.
    """
    keys = _read(folder / "config.json")
    family = _FAMILY_OF.get(str(keys.get("model_type")))
    if family is None:
        raise unsupported_family(keys.get("model_type"), str(keys.path))
    for name, neutral in _NEUTRAL_VALUES.items():
        if keys.get(name, neutral) != neutral:
            raise unsupported_feature(f"{name} = {keys.get(name)!r} in {keys.path}", repr(neutral))
    return _describe(keys, family), bool(keys.get("tie_word_embeddings", family == "gemma3"))


def _read(path: Path) -> _Keys:
    if not path.exists():
        raise ModelNotFoundError(
            given=f"no {path.name} in {path.parent}",
            expected="a GGUF file, or a model folder with config.json",
            remedy="Check the path",
        )
    return _Keys(path, read_json(path))


def _describe(keys: _Keys, family: str) -> DecoderConfig:
    is_gemma = family == "gemma3"
    num_layers, num_heads = keys.integer("num_hidden_layers"), keys.integer("num_attention_heads")
    if num_layers > MAX_LAYERS:
        raise keys.wrong("num_hidden_layers", f"at most {MAX_LAYERS} layers")
    hidden_size = keys.integer("hidden_size")
    num_kv_heads = keys.integer("num_key_value_heads", num_heads)
    head_dim = keys.integer("head_dim", hidden_size // num_heads)
    if num_heads % num_kv_heads or head_dim % 2:
        raise keys.wrong("num_key_value_heads", f"a divisor of {num_heads} heads, and an even head size")
    window, sliding_layers = _sliding(keys, family, num_layers)
    query_scale = keys.number("query_pre_attn_scalar", 256.0) ** -0.5 if is_gemma else None
    return DecoderConfig(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=keys.integer("vocab_size"),
        context_length=keys.integer("max_position_embeddings"),
        norm_eps=keys.number("rms_norm_eps"),
        rotary=_rotary(keys, _GLOBAL, head_dim, 1e6 if is_gemma else 1e4),
        rotary_layout=RotaryLayout.HALVES,
        local_rotary=_local_rotary(keys, head_dim) if is_gemma else None,
        sliding_window=window,
        sliding_layers=sliding_layers,
        attention_scale=query_scale,
        activation=_activation(keys, "hidden_activation" if is_gemma else "hidden_act"),
        embedding_scale=hidden_size**0.5 if is_gemma else 1.0,
        has_qkv_bias=family == "qwen2",
        has_qk_norm=family in ("qwen3", "gemma3"),
        has_post_norms=is_gemma,
        norm_offset=1.0 if is_gemma else 0.0,
    )


def _activation(keys: _Keys, name: str) -> Activation:
    default = "gelu_pytorch_tanh" if name == "hidden_activation" else "silu"
    activation = _ACTIVATIONS.get(str(keys.get(name, default)))
    if activation is None:
        raise unsupported_feature(
            f"{name} = {keys.get(name)!r} in {keys.path}", f"one of {', '.join(_ACTIVATIONS)}"
        )
    return activation


def _sliding(keys: _Keys, family: str, num_layers: int) -> tuple[int | None, frozenset[int]]:
    """Return the window and the layers that have it."""
    if family.startswith("qwen") and not keys.get("use_sliding_window", False):
        return None, frozenset()
    if family == "llama" and (keys.get("model_type") != "mistral" or not keys.get("sliding_window")):
        return None, frozenset()
    kinds = keys.get("layer_types")
    if kinds is None:
        kinds = [_LOCAL if _is_sliding(keys, family, layer) else _GLOBAL for layer in range(num_layers)]
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or any(kind not in (_GLOBAL, _LOCAL) for kind in kinds)
    ):
        raise keys.wrong("layer_types", f"{num_layers} times {_GLOBAL} or {_LOCAL}")
    layers = frozenset(layer for layer, kind in enumerate(kinds) if kind == _LOCAL)
    return (keys.integer("sliding_window", 4096), layers) if layers else (None, layers)


def _is_sliding(keys: _Keys, family: str, layer: int) -> bool:
    if family == "gemma3":
        return (layer + 1) % keys.integer("sliding_window_pattern", 6) != 0
    first = keys.get("max_window_layers", 28)
    if not isinstance(first, int):
        raise keys.wrong("max_window_layers", "a whole number")
    return family == "llama" or layer >= first


def _local_rotary(keys: _Keys, head_dim: int) -> Rotary:
    if keys.get("rope_parameters") is None:
        return Rotary(keys.number("rope_local_base_freq", 10_000.0))
    return _rotary(keys, _LOCAL, head_dim, 10_000.0)


def _rotary(keys: _Keys, kind: str, head_dim: int, default_base: float) -> Rotary:
    """Read the rotary parameters of one kind of layer."""
    parameters = keys.table("rope_parameters")
    if parameters is None:
        parameters = {"rope_theta": keys.get("rope_theta"), **(keys.table("rope_scaling") or {})}
    elif kind in parameters:
        parameters = parameters[kind]
        if not isinstance(parameters, Mapping):
            raise keys.wrong("rope_parameters", "objects")
    base = as_number(keys, "rope_theta", parameters.get("rope_theta") or default_base)
    name = parameters.get("rope_type", parameters.get("type", "default"))
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise unsupported_feature(f"partial rotary embedding in {keys.path}", "whole heads")
    if name == "default":
        return Rotary(base)
    if name == "linear":
        return Rotary(base, linear_factor=as_number(keys, "rope_scaling", parameters.get("factor")))
    if name == "llama3":
        return Rotary(base, factors=_llama3_factors(keys, parameters, base, head_dim))
    raise unsupported_feature(f"rotary scaling {name!r} in {keys.path}", "default, linear or llama3")


def _llama3_factors(
    keys: _Keys, parameters: Mapping[str, Any], base: float, head_dim: int
) -> tuple[float, ...]:
    """Return what Llama 3.1 divides each frequency by: nothing if it is fast, `factor` if it is slow."""
    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, length = (as_number(keys, "rope_scaling", parameters.get(name)) for name in names)
    if high <= low:
        raise keys.wrong("rope_scaling", "a high_freq_factor above the low_freq_factor")
    factors = []
    for pair in range(head_dim // 2):
        num_turns = length * base ** (-2 * pair / head_dim) / (2 * math.pi)
        share = min(1.0, max(0.0, (num_turns - low) / (high - low)))
        factors.append(1.0 / ((1.0 - share) / factor + share))
    return tuple(factors)
