"""A decoder's tensors as the native kernels hold them: packed straight from the mapped file.

The numbers are the file's own unless `Requantise` asks for others. No float32 matrix is made on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import _native
from paceline.kernels.packed import (
    BLOCK_ROWS,
    PACKED_FORMATS,
    TRANSCODED_TYPES,
    Matrix,
    PackedLinear,
)
from paceline.models.decoder_config import DecoderConfig, Rotary
from paceline.models.options import Weights
from paceline.models.pages import release_pages
from paceline.models.tensor_reader import EMBEDDING, FINAL_NORM, TensorReader
from paceline.models.tensors import TensorInfo, TensorSource

_FOUR_BITS = ("Q4_K", "Q4_0", "Q4_1")


def can_pack(tensor_type: str, weights: Weights) -> bool:
    """Whether a matrix of this type has a packed format."""
    return _keeps_values(tensor_type) or weights is not Weights.FILE


def requantised_format(tensor_type: str, weights: Weights) -> str:
    """Return the format that a matrix of this type is re-quantised to; empty where its values are kept."""
    if weights is Weights.INT4 and tensor_type not in _FOUR_BITS:
        return "Q4_0"
    return "" if _keeps_values(tensor_type) else "Q8_0"


def _keeps_values(tensor_type: str) -> bool:
    return tensor_type in PACKED_FORMATS or tensor_type in TRANSCODED_TYPES


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """What `_native.Model` is built from, next to the configuration."""

    embedding: TensorInfo
    """Left in the file: a pass needs a few rows."""
    layers: tuple[_native.DecoderLayer, ...]
    rotaries: tuple[Rotary, ...]
    rope_factors: NDArray[np.float32] | None
    final_norm: NDArray[np.float32]
    head: PackedLinear
    head_ids: NDArray[np.uint32] | None
    """Token ids of the head's rows, rising; none where the head has all."""


def pack_weights(
    source: TensorSource,
    config: DecoderConfig,
    weights: Weights = Weights.FILE,
    head_ids: NDArray[np.uint32] | None = None,
    advance: Callable[[int], None] | None = None,
) -> NativeWeights:
    """Pack all tensors that the configuration needs, and give the pages of the file back.

    Args:
        source: the file's tensors, of types that `unsupported_by_native` does not name.
        config: of the decoder.
        weights: whether to re-quantise.
        head_ids: token ids whose rows of the output matrix are kept, uint32, rising; none keeps all.
        advance: told the number of bytes of the file that each step has dealt with.

    Raises:
        MissingTensorError: a tensor is not there.
        ModelFileError: one has another shape than the configuration says.
    """
    packer = _Packer(source, config, weights, advance)
    rotaries = tuple(dict.fromkeys(config.rotary_of(layer) for layer in range(config.num_layers)))
    layers = tuple(packer.layer(layer, rotaries) for layer in range(config.num_layers))
    size = (config.vocab_size, config.hidden_size)
    native = NativeWeights(
        embedding=packer.tensor(EMBEDDING, size),
        layers=layers,
        rotaries=rotaries,
        rope_factors=packer.rope_factors(),
        final_norm=packer.norm(FINAL_NORM, config.hidden_size),
        head=packer.matrices([packer.head_name], [size[0]], size[1], rows=head_ids),
        head_ids=head_ids,
    )
    packer.finish()
    return native


class _Packer(TensorReader):
    """Packs matrices as they are read."""

    def __init__(
        self,
        source: TensorSource,
        config: DecoderConfig,
        weights: Weights,
        advance: Callable[[int], None] | None,
    ) -> None:
        super().__init__(source, config, advance)
        self._weights = weights

    def matrices(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        num_inputs: int,
        interleave: bool = False,
        rows: NDArray[np.uint32] | None = None,
    ) -> PackedLinear:
        """Pack matrices [size, num_inputs] below one another, or 16 rows of each in turn."""
        tensors = [self.tensor(name, (size, num_inputs)) for name, size in zip(names, sizes, strict=True)]
        parts = [Matrix(t.type, t.data, requantised_format(t.type, self._weights), rows) for t in tensors]
        packed = PackedLinear(parts, num_inputs, interleave=interleave)
        for tensor in tensors:
            release_pages(tensor.data)
            self.report(tensor.data.nbytes)
        return packed

    def layer(self, index: int, rotaries: Sequence[Rotary]) -> _native.DecoderLayer:
        config, prefix = self.config, f"blk.{index}."
        hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        mixed, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
        qkv, qkv_sizes = [f"{prefix}attn_{part}" for part in "qkv"], [mixed, kv_size, kv_size]
        gate_up, gate_up_sizes = [f"{prefix}ffn_gate", f"{prefix}ffn_up"], [inner, inner]
        output, down = [f"{prefix}attn_output"], [f"{prefix}ffn_down"]
        has_post_norms, has_qk_norm = config.has_post_norms, config.has_qk_norm
        return _native.DecoderLayer(
            qkv=self.matrices(_weights(qkv), qkv_sizes, hidden).native,
            output=self.matrices(_weights(output), [hidden], mixed).native,
            gate_up=self.matrices(_weights(gate_up), gate_up_sizes, hidden, interleave=True).native,
            down=self.matrices(_weights(down), [hidden], inner).native,
            qkv_bias=self.bias(qkv, qkv_sizes, is_required=config.has_qkv_bias),
            output_bias=self.bias(output, [hidden]),
            gate_up_bias=_interleaved(self.bias(gate_up, gate_up_sizes)),
            down_bias=self.bias(down, [hidden]),
            attention_norm=self.norm(f"{prefix}attn_norm.weight", hidden),
            q_norm=self._norm_if(has_qk_norm, f"{prefix}attn_q_norm.weight", head_dim),
            k_norm=self._norm_if(has_qk_norm, f"{prefix}attn_k_norm.weight", head_dim),
            post_attention_norm=self._norm_if(has_post_norms, f"{prefix}post_attention_norm.weight", hidden),
            feed_forward_norm=self.norm(f"{prefix}ffn_norm.weight", hidden),
            post_feed_forward_norm=self._norm_if(has_post_norms, f"{prefix}post_ffw_norm.weight", hidden),
            window=config.window_of(index) or 0,
            rotary=rotaries.index(config.rotary_of(index)),
        )

    def _norm_if(self, is_there: bool, name: str, size: int) -> NDArray[np.float32] | None:
        return self.norm(name, size) if is_there else None


def _weights(names: Sequence[str]) -> list[str]:
    return [f"{name}.weight" for name in names]


def _interleaved(bias: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
    """Return gates' and ups' biases in the order of the packed rows."""
    if bias is None:
        return None
    return np.ascontiguousarray(bias.reshape(2, -1, BLOCK_ROWS).transpose(1, 0, 2)).reshape(-1)


def unsupported_by_native(source: TensorSource, config: DecoderConfig, weights: Weights) -> str | None:
    """Return what the native decoder cannot do with this model, in words; none where it can run it."""
    mixed = config.num_heads * config.head_dim
    sizes = {
        "a hidden size": (config.hidden_size, 32),
        "an intermediate size": (config.intermediate_size, 32),
        "a width of all heads": (mixed, 32),
        "a width of all kv heads": (config.num_kv_heads * config.head_dim, BLOCK_ROWS),
        "a head size": (config.head_dim, 8),
    }
    for what, (size, multiple) in sizes.items():
        if size % multiple:
            return f"{what} of {size}, which is not a multiple of {multiple}"
    head_name = TensorReader(source, config).head_name
    for name, tensor in source.tensors.items():
        if len(tensor.shape) != 2 or (name == EMBEDDING != head_name):
            continue
        if not can_pack(tensor.type, weights):
            return f"tensor {name!r} of type {tensor.type}"
    return None
