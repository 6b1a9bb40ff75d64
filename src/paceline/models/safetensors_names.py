"""Hugging Face's tensor names to GGUF's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from paceline.errors import MissingTensorError
from paceline.models.decoder_config import DecoderConfig
from paceline.models.tensors import TensorInfo

_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_POST_NORM_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def with_gguf_names(
    tensors: Mapping[str, TensorInfo], config: DecoderConfig, is_tied: bool, where: str
) -> dict[str, TensorInfo]:
    """Return the tensors by GGUF's names; names of no known part are kept as they are.

    Args:
        tensors: by Hugging Face's names.
        config: of the decoder; Gemma gives one name another meaning.
        is_tied: whether the output head is the embedding; a stored copy of it is dropped then.
        where: the folder, for error messages.

    Raises:
        MissingTensorError: there is no output head though it is not tied.
    """
    parts = _PARTS | (_POST_NORM_PARTS if config.has_post_norms else {})
    renamed: dict[str, TensorInfo] = {}
    for name, tensor in tensors.items():
        new_name = _rename(name, parts)
        renamed[new_name] = dataclasses.replace(tensor, name=new_name)
    if is_tied:
        renamed.pop("output.weight", None)
    elif "output.weight" not in renamed:
        raise MissingTensorError(
            given=f"no tensor 'lm_head.weight' in {where}",
            expected="an output head, since config.json does not tie it to the embedding",
            remedy="Fetch a complete model",
        )
    return renamed


def _rename(name: str, parts: Mapping[str, str]) -> str:
    stem, _, kind = name.rpartition(".")
    if match := _LAYER.fullmatch(stem):
        layer, part = match.groups()
        return f"blk.{layer}.{parts[part]}.{kind}" if part in parts else name
    return f"{_TOP[stem]}.{kind}" if stem in _TOP else name
