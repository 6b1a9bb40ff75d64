"""Native operators on rows, neither matrix products nor attention; `reference.py` says what they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import _native
from paceline.kernels.activations import aligned_groups, as_bytes

Floats = NDArray[np.float32]


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Scale rows to unit root mean square (Zhang and Sennrich 2019).

    Args:
        x: float32 [num_rows, size], contiguous; size a multiple of 8.
        weight: float32 [size].
        eps: added to the mean square.

    Raises:
        ValueError: shapes that do not agree.
    """
    out = np.empty_like(x)
    _native.rms_norm(x, weight, eps, out)
    return out


def rms_norm_quantise(x: Floats, weight: Floats, eps: float) -> NDArray[np.void]:
    """Return what `activations.quantise` makes of `rms_norm`; size is a multiple of 32."""
    groups = aligned_groups(*x.shape)
    _native.rms_norm_quantise(x, weight, eps, as_bytes(groups))
    return groups


def gated(activation: str, gate_up: Floats, *, interleaved: bool) -> Floats:
    """Return activation(gate) * up (Shazeer 2020), float32 [num_rows, size].

    Args:
        activation: silu or gelu_tanh.
        gate_up: float32 [num_rows, 2 size], contiguous; size a multiple of 16.
        interleaved: 16 gates and 16 ups in turn, as `PackedLinear` lays them; else all gates first.

    Raises:
        ValueError: an unknown activation, or a size that does not fit.
    """
    out = np.empty((gate_up.shape[0], gate_up.shape[1] // 2), np.float32)
    _native.gate(activation, gate_up, interleaved, out)
    return out


def gated_quantise(activation: str, gate_up: Floats, *, interleaved: bool) -> NDArray[np.void]:
    """Return what `activations.quantise` makes of `gated`; size is a multiple of 32."""
    groups = aligned_groups(gate_up.shape[0], gate_up.shape[1] // 2)
    _native.gate_quantise(activation, gate_up, interleaved, as_bytes(groups))
    return groups


def embedding_rows(
    tensor_type: str, table: NDArray[np.uint8], token_ids: NDArray[np.int32], size: int, scale: float = 1.0
) -> Floats:
    """Return rows of an embedding table, float32 [num_tokens, size], decoded from its file's bytes.

    Args:
        tensor_type: one of `dequantize.SUPPORTED_TYPES`.
        table: uint8 [num_bytes], contiguous; a view of the memory-mapped file will do.
        token_ids: int32 [num_tokens].
        size: values in a row, whole blocks of the type.
        scale: factor on them.

    Raises:
        ValueError: an unknown type, a size that does not fit, or a token that is not in the table.
    """
    out = np.empty((len(token_ids), size), np.float32)
    _native.embed(tensor_type, table, token_ids, scale, out)
    return out
