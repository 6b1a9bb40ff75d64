"""Native attention over a paged store of keys and values in half precision, and what fills that store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.kernels import _native

BLOCK_SIZE = 16
"""Positions in a block of the store."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerStore:
    """Keys and values of one layer. How they lie within a block is what the kernels read fastest."""

    keys: NDArray[np.float16]  # [num_blocks, num_kv_heads, head_dim, BLOCK_SIZE]
    values: NDArray[np.float16]  # [num_blocks, num_kv_heads, BLOCK_SIZE, head_dim]

    @classmethod
    def allocate(cls, num_blocks: int, num_kv_heads: int, head_dim: int) -> LayerStore:
        """Return a store of blocks with nothing in them; the system gives their memory when it is written."""
        return cls(
            np.empty((num_blocks, num_kv_heads, head_dim, BLOCK_SIZE), np.float16),
            np.empty((num_blocks, num_kv_heads, BLOCK_SIZE, head_dim), np.float16),
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one sequence at consecutive positions."""

    start: int
    """Position of the first row."""
    num_rows: int
    block_ids: Sequence[int]
    """Blocks that cover the positions from 0 to the last row's."""


def rotary_angles(
    frequencies: Floats, positions: NDArray[np.int64], scale: float = 1.0
) -> tuple[Floats, Floats]:
    """Return cosines and sines of positions times frequencies, float32 [num_rows, head_dim / 2] each.

    Args:
        frequencies: float32 [head_dim / 2] (Su et al. 2021); see `reference.rotary_frequencies`.
        positions: int64 [num_rows].
        scale: factor on both (YaRN's attention factor, Peng et al. 2023).
    """
    cos, sin = np.empty((2, len(positions), len(frequencies)), np.float32)
    _native.rotary_angles(frequencies, scale, positions, cos, sin)
    return cos, sin


def rotate_and_store(
    qkv: Floats,
    angles: tuple[Floats, Floats],
    places: tuple[NDArray[np.int32], NDArray[np.int32]],
    store: LayerStore,
    *,
    interleaved: bool,
    q_norm: Floats | None = None,
    k_norm: Floats | None = None,
    norm_eps: float = 0.0,
) -> None:
    """Turn the heads of q in place, and write k, turned, and v to the store as halves.

    Args:
        qkv: float32 [num_rows, (num_heads + 2 num_kv_heads) * head_dim], q then k then
            v. Its k is overwritten.
        angles: what `rotary_angles` returns for the rows' positions.
        places: block id and slot of each row, int32 [num_rows] each; no two rows share a place.
        store: where to.
        interleaved: values 2 i and 2 i + 1 of a head are turned together, else i and i + head_dim / 2.
        q_norm, k_norm: float32 [head_dim], weights of a norm of each head that comes first, or none.
        norm_eps: of these norms.

    Raises:
        ValueError: shapes that do not agree, or a place that is not in the store.
    """
    _native.rotate_and_store(
        qkv, *angles, interleaved, q_norm, k_norm, norm_eps, _bits(store.keys), _bits(store.values), *places
    )


def attend(
    queries: Floats, store: LayerStore, batch: Sequence[Rows], scale: float, window: int = 0
) -> Floats:
    """Attend from ragged rows to all that each may see: its own position and those before it.

    A row's bits depend on its query and on what it sees alone: not on the rows beside it, on how a prompt is
    cut into chunks, or on the number of threads.

    Args:
        queries: float32 [num_rows, num_heads, head_dim], the rows of `batch` in order.
        store: holds what the rows see, their own keys and values included.
        batch: one entry a sequence.
        scale: factor on the scores.
        window: how many positions a row sees, its own included; 0 is all.

    Returns:
        float32 of the shape of `queries`.

    Raises:
        ValueError: shapes that do not agree, a block that is not in the store, or sizes beyond the kernels'.
    """
    out = np.empty_like(queries)
    block_ids = np.zeros((len(batch), max((len(rows.block_ids) for rows in batch), default=0)), np.int32)
    for ids, rows in zip(block_ids, batch, strict=True):
        ids[: len(rows.block_ids)] = rows.block_ids
    num_rows = np.array([rows.num_rows for rows in batch], np.int32)
    starts = np.array([rows.start for rows in batch], np.int32)
    _native.attention(
        queries, _bits(store.keys), _bits(store.values), num_rows, starts, block_ids, scale, window, out
    )
    return out


def _bits(halves: NDArray[np.float16]) -> NDArray[np.uint16]:
    return halves.view(np.uint16)
