"""A GGUF file as a `transformers` model: an independent road to the same logits.

Bytes are decoded by `gguf.quants`; names, rotary layout and norm weights are turned back here, and not by the
code under test.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import torch
import transformers

from paceline.models.gguf_file import GGUFFile

_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_PARTS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def hf_config(file: GGUFFile) -> transformers.PreTrainedConfig:
    """Return the configuration that the metadata mean."""
    family = file.metadata["general.architecture"]
    get = {key.removeprefix(f"{family}."): value for key, value in file.metadata.items()}
    num_heads = get["attention.head_count"]
    window = get.get("attention.sliding_window")
    sizes: dict[str, Any] = {
        "hidden_size": get["embedding_length"],
        "intermediate_size": get["feed_forward_length"],
        "num_hidden_layers": get["block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": get["attention.head_count_kv"],
        "head_dim": get.get("attention.key_length", get["embedding_length"] // num_heads),
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "max_position_embeddings": get["context_length"],
        "rms_norm_eps": get["attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope_parameters(get),
        "attn_implementation": "eager",
        "pad_token_id": None,
    }
    if family == "gemma3":
        local = {"rope_type": "default", "rope_theta": 10_000.0}
        kinds = {"full_attention": sizes["rope_parameters"], "sliding_attention": local}
        more = {"sliding_window": window, "query_pre_attn_scalar": sizes["head_dim"]}
        return transformers.Gemma3TextConfig(**sizes | more | {"rope_parameters": kinds})
    if family == "llama" and window:
        return transformers.MistralConfig(**sizes | {"sliding_window": window})
    kinds = {
        "llama": transformers.LlamaConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
    }
    return kinds[family](**sizes)


def _rope_parameters(get: dict[str, Any]) -> dict[str, Any]:
    scaling = {
        key.removeprefix("rope.scaling."): value for key, value in get.items() if "rope.scaling." in key
    }
    names = {
        "type": "rope_type",
        "factor": "factor",
        "original_context_length": "original_max_position_embeddings",
        "yarn_attn_factor": "attention_factor",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
        "yarn_log_multiplier": "mscale_all_dim",
    }
    parameters = {names[key]: value for key, value in scaling.items() if key != "yarn_ext_factor"}
    if "mscale_all_dim" in parameters:
        parameters["mscale"] = 1.0
    return {"rope_type": "default", "rope_theta": get["rope.freq_base"]} | parameters


def hf_model(file: GGUFFile) -> torch.nn.Module:
    """Return the model in float32, on the CPU."""
    config = hf_config(file)
    family = file.metadata["general.architecture"]
    state = {}
    for name, tensor in file.tensors.items():
        if name == "rope_freqs.weight":
            continue
        values = _decode(tensor.type, tensor.data, tensor.shape)
        if family == "gemma3" and name.endswith("norm.weight"):
            values = values - np.float32(1)
        if family == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
            values = _to_halves(values, config.head_dim)
        state[_hf_name(name, family)] = torch.from_numpy(np.ascontiguousarray(values))
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(state, strict=True, assign=True)
    _rebuild_buffers(model, config, file)
    return model.eval()


def hf_logits(model: torch.nn.Module, token_ids: list[int]) -> torch.Tensor:
    """Return logits [num_tokens, vocab]."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids]), use_cache=False).logits[0]


def _decode(type_name: str, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    tensor_type = gguf.GGMLQuantizationType[type_name]
    block, width = gguf.GGML_QUANT_SIZES[tensor_type]
    rows = data.reshape(-1, shape[-1] // block * width)
    return gguf.quants.dequantize(rows, tensor_type).reshape(shape).astype(np.float32)


def _to_halves(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Undo the reordering of llama.cpp's converter: pairs (2i, 2i + 1) back to (i, i + head_dim / 2)."""
    num_rows, num_inputs = weight.shape
    pairs = weight.reshape(num_rows // head_dim, head_dim // 2, 2, num_inputs)
    return pairs.swapaxes(1, 2).reshape(num_rows, num_inputs)


def _hf_name(name: str, family: str) -> str:
    if name in ("token_embd.weight", "output.weight", "output_norm.weight"):
        return {"token": "model.embed_tokens.weight", "output": "lm_head.weight"}.get(
            name.removesuffix("_embd.weight").removesuffix(".weight"), "model.norm.weight"
        )
    parts = _PARTS | (_GEMMA_PARTS if family == "gemma3" else {})
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{parts[part]}.{kind}"


def _rebuild_buffers(model: Any, config: transformers.PreTrainedConfig, file: GGUFFile) -> None:
    """Buffers made on the meta device hold nothing; make them anew, with the file's rope factors."""
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        model.model.rotary_emb.inv_freq /= torch.from_numpy(_decode("F32", factors.data, factors.shape))
    embedding = model.model.embed_tokens
    if hasattr(embedding, "embed_scale"):
        embedding.embed_scale = torch.tensor(config.hidden_size**0.5)
