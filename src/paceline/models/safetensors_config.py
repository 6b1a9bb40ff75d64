"""The decoder that a Hugging Face `config.json` describes.

Defaults of absent keys are those of the configuration classes in `transformers`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.errors import ModelNotFoundError
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
from paceline.models.json_keys import JsonKeys
from paceline.models.safetensors_rotary import GLOBAL, LOCAL, read_rotary

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


def _read(path: Path) -> JsonKeys:
    if not path.exists():
        raise ModelNotFoundError(
            given=f"no {path.name} in {path.parent}",
            expected="a GGUF file, or a model folder with config.json",
            remedy="Check the path",
        )
    return JsonKeys(path, read_json(path))


def _describe(keys: JsonKeys, family: str) -> DecoderConfig:
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
    rotary = read_rotary(keys, GLOBAL, 1e6 if is_gemma else 1e4)
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
        context_length=rotary.context_length(keys.integer("max_position_embeddings")),
        norm_eps=keys.number("rms_norm_eps"),
        rotary=rotary,
        rotary_layout=RotaryLayout.HALVES,
        local_rotary=_local_rotary(keys) if is_gemma else None,
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


def _activation(keys: JsonKeys, name: str) -> Activation:
    default = "gelu_pytorch_tanh" if name == "hidden_activation" else "silu"
    activation = _ACTIVATIONS.get(str(keys.get(name, default)))
    if activation is None:
        raise unsupported_feature(
            f"{name} = {keys.get(name)!r} in {keys.path}", f"one of {', '.join(_ACTIVATIONS)}"
        )
    return activation


def _sliding(keys: JsonKeys, family: str, num_layers: int) -> tuple[int | None, frozenset[int]]:
    """Return the window and the layers that have it."""
    if family.startswith("qwen") and not keys.get("use_sliding_window", False):
        return None, frozenset()
    if family == "llama" and (keys.get("model_type") != "mistral" or not keys.get("sliding_window")):
        return None, frozenset()
    kinds = keys.get("layer_types")
    if kinds is None:
        kinds = [LOCAL if _is_sliding(keys, family, layer) else GLOBAL for layer in range(num_layers)]
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or any(kind not in (GLOBAL, LOCAL) for kind in kinds)
    ):
        raise keys.wrong("layer_types", f"{num_layers} times {GLOBAL} or {LOCAL}")
    layers = frozenset(layer for layer, kind in enumerate(kinds) if kind == LOCAL)
    return (keys.integer("sliding_window", 4096), layers) if layers else (None, layers)


def _is_sliding(keys: JsonKeys, family: str, layer: int) -> bool:
    if family == "gemma3":
        return (layer + 1) % keys.integer("sliding_window_pattern", 6) != 0
    first = keys.get("max_window_layers", 28)
    if not isinstance(first, int):
        raise keys.wrong("max_window_layers", "a whole number")
    return family == "llama" or layer >= first


def _local_rotary(keys: JsonKeys) -> Rotary:
    if keys.get("rope_parameters") is None:
        return Rotary(keys.number("rope_local_base_freq", 10_000.0))
    return read_rotary(keys, LOCAL, 10_000.0)
