"""The decoder that a GGUF file's metadata describe.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and llama.cpp's `llama-arch.cpp`; defaults of
Gemma 3 that no key holds: its reference implementation in `transformers`.
"""

from __future__ import annotations

from typing import Any

from paceline.errors import MissingTensorError
from paceline.models.decoder_config import (
    FAMILIES,
    MAX_LAYERS,
    Activation,
    DecoderConfig,
    Rotary,
    RotaryLayout,
    unsupported_family,
    unsupported_feature,
)
from paceline.models.gguf_file import GGUFFile
from paceline.models.gguf_keys import GGUFKeys
from paceline.models.gguf_rotary import read_rotary

GEMMA3_LOCAL_ROPE_BASE = 10_000.0
GEMMA3_LAYERS_PER_GLOBAL = 6
GEMMA3_27B_NUM_LAYERS = 62

# Keys that would change the arithmetic in ways the decoder does not know, and the value that changes nothing.
_NEUTRAL_VALUES: dict[str, Any] = {
    "expert_count": 0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attention.temperature_scale": 0.0,
    "use_parallel_residual": False,
    "rope.scaling.alpha": 0.0,
    "rope.scaling.yarn_ext_factor": 1.0,
}


def config_from_gguf(file: GGUFFile) -> DecoderConfig:
    """Read the decoder's description.

    Raises:
        UnsupportedModelError: an unknown architecture, or a feature that the decoder lacks.
        ModelFileError: a key is missing or makes no sense.
        MissingTensorError: there is no token embedding.
    """
    family = file.metadata.get("general.architecture")
    if family not in FAMILIES:
        raise unsupported_family(family, str(file.path))
    keys = GGUFKeys(file, family)
    _refuse_unknown_arithmetic(keys)
    num_heads, hidden_size = keys.integer("attention.head_count"), keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    _check_heads(keys, num_heads, head_dim)
    is_gemma, num_layers = family == "gemma3", keys.integer("block_count")
    if num_layers > MAX_LAYERS:
        raise keys.wrong("block_count", num_layers, f"at most {MAX_LAYERS} layers")
    context_length = keys.integer("context_length")
    rotary = read_rotary(keys, context_length)
    return DecoderConfig(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=_vocab_size(file),
        context_length=rotary.context_length(context_length),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rotary=rotary,
        rotary_layout=RotaryLayout.INTERLEAVED if family == "llama" else RotaryLayout.HALVES,
        local_rotary=Rotary(keys.number("rope.freq_base_swa", GEMMA3_LOCAL_ROPE_BASE)) if is_gemma else None,
        sliding_window=keys.integer("attention.sliding_window") if _is_sliding(keys) else None,
        sliding_layers=_sliding_layers(keys, num_layers),
        attention_scale=_attention_scale(keys, num_layers, hidden_size, num_heads),
        activation=Activation.GELU_TANH if is_gemma else Activation.SILU,
        embedding_scale=hidden_size**0.5 if is_gemma else 1.0,
        has_qkv_bias=family == "qwen2",
        has_qk_norm=family in ("qwen3", "gemma3"),
        has_post_norms=is_gemma,
    )


def _refuse_unknown_arithmetic(keys: GGUFKeys) -> None:
    for name, neutral in _NEUTRAL_VALUES.items():
        value = keys.get(name)
        if value is not None and value != neutral:
            raise unsupported_feature(f"{keys.prefix}.{name} = {value!r} in {keys.path}", repr(neutral))


def _check_heads(keys: GGUFKeys, num_heads: int, head_dim: int) -> None:
    num_kv_heads = keys.integer("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise keys.wrong("attention.head_count_kv", num_kv_heads, f"a divisor of {num_heads} heads")
    for name in ("attention.value_length", "rope.dimension_count"):
        if (size := keys.integer(name, head_dim)) != head_dim:
            raise unsupported_feature(
                f"{keys.prefix}.{name} = {size} in {keys.path}", f"the head size {head_dim}"
            )
    if head_dim % 2:
        raise keys.wrong("attention.key_length", head_dim, "an even head size")


def _is_sliding(keys: GGUFKeys) -> bool:
    return keys.prefix == "gemma3" or bool(keys.get("attention.sliding_window"))


def _sliding_layers(keys: GGUFKeys, num_layers: int) -> frozenset[int]:
    if not _is_sliding(keys):
        return frozenset()
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):  # one flag a layer
        if len(pattern) != num_layers:
            raise keys.wrong("attention.sliding_window_pattern", pattern, f"{num_layers} flags")
        return frozenset(layer for layer, is_sliding in enumerate(pattern) if is_sliding)
    if keys.prefix != "gemma3" and pattern is None:
        return frozenset(range(num_layers))
    period = keys.integer("attention.sliding_window_pattern", GEMMA3_LAYERS_PER_GLOBAL)
    return frozenset(layer for layer in range(num_layers) if (layer + 1) % period)


def _attention_scale(keys: GGUFKeys, num_layers: int, hidden_size: int, num_heads: int) -> float | None:
    """Gemma 3 27B alone scales by hidden / heads instead of the head size; no key says so."""
    if keys.get("attention.scale"):
        return keys.number("attention.scale")
    if keys.prefix == "gemma3" and num_layers == GEMMA3_27B_NUM_LAYERS:
        return float((hidden_size / num_heads) ** -0.5)
    return None


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise MissingTensorError(
            given=f"no tensor 'token_embd.weight' in {file.path}",
            expected="a token embedding",
            remedy="Fetch a complete model file",
        )
    return embedding.shape[0]
