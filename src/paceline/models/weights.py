"""A decoder's tensors, from any file format, as the float32 matrices that the decoder multiplies by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.models.decoder_config import DecoderConfig
from paceline.models.tensor_reader import EMBEDDING, FINAL_NORM, TensorReader
from paceline.models.tensors import TensorInfo, TensorSource


class Embedding(Protocol):
    """Rows for token ids."""

    def rows(self, token_ids: Sequence[int]) -> Tensor:
        """Return float32 [len(token_ids), hidden_size]."""


@dataclass(frozen=True, slots=True)
class MatrixEmbedding:
    """An embedding that is in memory anyway, since the output head is the same matrix."""

    matrix: Tensor

    def rows(self, token_ids: Sequence[int]) -> Tensor:
        """Return float32 [len(token_ids), hidden_size]."""
        return self.matrix[torch.tensor(token_ids, dtype=torch.int64, device=self.matrix.device)]


@dataclass(frozen=True, slots=True)
class FileEmbedding:
    """An embedding left in its file: a step needs a few rows, and all in float32 would take a gigabyte."""

    tensor: TensorInfo
    device: torch.device

    def rows(self, token_ids: Sequence[int]) -> Tensor:
        """Return float32 [len(token_ids), hidden_size]."""
        return torch.from_numpy(self.tensor.read_rows(token_ids)).to(self.device)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; norms have any offset added, and none stands for a part that the family lacks."""

    attention_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 kv_heads) x head_dim, hidden]
    qkv_bias: Tensor | None
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None  # [head_dim]
    output: Tensor  # [hidden, heads x head_dim]
    output_bias: Tensor | None
    post_attention_norm: Tensor | None  # [hidden]
    feed_forward_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 x intermediate, hidden]
    gate_up_bias: Tensor | None
    down: Tensor  # [hidden, intermediate]
    down_bias: Tensor | None
    post_feed_forward_norm: Tensor | None  # [hidden]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Everything that a decoder multiplies by, on one device."""

    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]
    rope_factors: NDArray[np.float32] | None  # [head_dim / 2]


def load_weights(
    source: TensorSource,
    config: DecoderConfig,
    device: torch.device,
    advance: Callable[[int], None] | None = None,
) -> DecoderWeights:
    """Decode all tensors that the configuration needs; the others are logged at debug level.

    Args:
        source: the tensors.
        config: which of them are needed, and their shapes.
        device: where the results go.
        advance: told the number of bytes of the file that each step has dealt with, all of them in the end.

    Raises:
        MissingTensorError: one is not there.
        ModelFileError: one has another shape than the configuration says.
    """
    reader = _Reader(source, config, device, advance)
    layers = tuple(_load_layer(reader, layer) for layer in range(config.num_layers))
    size = (config.vocab_size, config.hidden_size)
    is_tied = reader.head_name == EMBEDDING
    head = reader.matrix([reader.head_name], [size[0]], size[1])
    embedding = reader.tensor(EMBEDDING, size)
    weights = DecoderWeights(
        embedding=MatrixEmbedding(head) if is_tied else FileEmbedding(embedding, device),
        layers=layers,
        final_norm=reader.norm_tensor(FINAL_NORM, config.hidden_size),
        head=head,
        rope_factors=reader.rope_factors(),
    )
    reader.finish()
    return weights


def _load_layer(reader: _Reader, layer: int) -> LayerWeights:
    config, prefix = reader.config, f"blk.{layer}."
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
    qkv_names = [f"{prefix}attn_{part}" for part in "qkv"]
    qkv_sizes = [query_size, kv_size, kv_size]
    gate_up_names, gate_up_sizes = [f"{prefix}ffn_gate", f"{prefix}ffn_up"], [inner, inner]
    output_names, down_names = [f"{prefix}attn_output"], [f"{prefix}ffn_down"]
    has_post_norms, has_qk_norm = config.has_post_norms, config.has_qk_norm
    return LayerWeights(
        attention_norm=reader.norm_tensor(f"{prefix}attn_norm.weight", hidden),
        qkv=reader.matrix(_weights(qkv_names), qkv_sizes, hidden),
        qkv_bias=reader.bias_tensor(qkv_names, qkv_sizes, is_required=config.has_qkv_bias),
        query_norm=reader.norm_tensor(f"{prefix}attn_q_norm.weight", config.head_dim)
        if has_qk_norm
        else None,
        key_norm=reader.norm_tensor(f"{prefix}attn_k_norm.weight", config.head_dim) if has_qk_norm else None,
        output=reader.matrix(_weights(output_names), [hidden], query_size),
        output_bias=reader.bias_tensor(output_names, [hidden]),
        post_attention_norm=reader.norm_tensor(f"{prefix}post_attention_norm.weight", hidden)
        if has_post_norms
        else None,
        feed_forward_norm=reader.norm_tensor(f"{prefix}ffn_norm.weight", hidden),
        gate_up=reader.matrix(_weights(gate_up_names), gate_up_sizes, hidden),
        gate_up_bias=reader.bias_tensor(gate_up_names, gate_up_sizes),
        down=reader.matrix(_weights(down_names), [hidden], inner),
        down_bias=reader.bias_tensor(down_names, [hidden]),
        post_feed_forward_norm=reader.norm_tensor(f"{prefix}post_ffw_norm.weight", hidden)
        if has_post_norms
        else None,
    )


def _weights(names: Iterable[str]) -> list[str]:
    return [f"{name}.weight" for name in names]


class _Reader(TensorReader):
    """The same as tensors of PyTorch, on one device."""

    def __init__(
        self,
        source: TensorSource,
        config: DecoderConfig,
        device: torch.device,
        advance: Callable[[int], None] | None,
    ) -> None:
        super().__init__(source, config, advance)
        self._device = device

    def matrix(self, names: Sequence[str], sizes: Sequence[int], num_inputs: int) -> Tensor:
        """Return matrices [size, num_inputs] below one another, from a `reference.ALIGNMENT` boundary on."""
        # Looked up, and so checked against the file, before memory is taken for sizes that may be nonsense.
        parts = [self.tensor(name, (size, num_inputs)) for name, size in zip(names, sizes, strict=True)]
        fused = torch.empty((sum(sizes), num_inputs))  # NumPy's own memory begins at any multiple of 16 bytes
        start = 0
        for part, size in zip(parts, sizes, strict=True):
            self.read(part, fused[start : start + size].numpy())
            start += size
        return fused.to(self._device)

    def norm_tensor(self, name: str, size: int) -> Tensor:
        return torch.from_numpy(self.norm(name, size)).to(self._device)

    def bias_tensor(
        self, names: Sequence[str], sizes: Sequence[int], is_required: bool = False
    ) -> Tensor | None:
        values = self.bias(names, sizes, is_required)
        return None if values is None else torch.from_numpy(values).to(self._device)
