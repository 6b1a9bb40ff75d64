"""The reference operators: float32 PyTorch, and a row's numbers that never depend on the rows beside it.

A library's sum changes its order with the shape it is given. So nothing here that adds up sees a shape that
depends on the batch: norms and linear layers work on tiles of `ROW_TILE` rows, attention on as many query
columns and on KV blocks of `KV_BLOCK` positions counted from position 0, all padded.

Inside a tile, each row's arithmetic must be the same at every place. A matrix product cuts its output into
register blocks, and those at an edge may add in another order. So rows are always the *last* axis of a
product, the one that lies across vector lanes, and there are 16 of them: whole vectors, no edge, whatever the
instruction set. (On the other axis they do differ: seen with MKL's AVX2 kernels.)

Nor may it matter where an operand lies. MKL says that alignment can order its sums (user guide, "Aligning
Data for Consistent Results"), and two loads of one file lie differently. So all that is multiplied begins
at a multiple of `ALIGNMENT` bytes: weights, since they are read into PyTorch's own memory, and tiles and
blocks, since each is a whole number of such units.

Faster kernels are checked against these.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.kernels.threads import run_parts

ALIGNMENT = 64
"""Bytes: the widest vector, and what PyTorch's allocator aligns to on a CPU."""
ROW_TILE = 16
"""Rows of one linear layer or norm call, and columns of one attention product."""
FEATURE_CHUNK = 512
"""Output features of one matrix product on a CPU: what threads share out."""
KV_BLOCK = 256
"""Key positions that one attention product covers."""


def padded(num_rows: int, tile: int) -> int:
    """Return `num_rows` rounded up to whole tiles."""
    return -(-num_rows // tile) * tile


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows by a weight matrix.

    Args:
        x: float32 [num_rows, in]; num_rows a multiple of `ROW_TILE`.
        weight: float32 [out, in], contiguous.
        bias: float32 [out], or none.

    Returns:
        float32 [num_rows, out], contiguous.
    """
    num_tiles, num_features = x.shape[0] // ROW_TILE, weight.shape[0]
    # The library has other kernels, with other sums, for other layouts: a tile's is always the same.
    tiles = x.contiguous().view(num_tiles, ROW_TILE, x.shape[1]).transpose(1, 2)
    out = x.new_empty(num_tiles, num_features, ROW_TILE)
    # Rows are the last axis (see above); a chunk of weights stays in the cache for all tiles.
    chunk = FEATURE_CHUNK if x.device.type == "cpu" else num_features

    def multiply(part: int) -> None:
        features = slice(part * chunk, (part + 1) * chunk)
        for tile, result in zip(tiles, out, strict=True):
            torch.mm(weight[features], tile, out=result[features])

    run_parts(multiply, -(-num_features // chunk))
    rows = out.transpose(1, 2).contiguous().view(num_tiles * ROW_TILE, num_features)
    return rows if bias is None else rows.add_(bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale rows to unit root mean square (Zhang and Sennrich 2019).

    Args:
        x: float32 [num_rows, ..., size]; num_rows a multiple of `ROW_TILE`.
        weight: float32 [size].
        eps: added to the mean square.

    Returns:
        float32 of x's shape, contiguous.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for tile, result in zip(torch.split(x, ROW_TILE), torch.split(out, ROW_TILE), strict=True):
        tile = tile.contiguous()
        mean_square = (tile * tile).sum(-1, keepdim=True) / x.shape[-1]
        torch.mul(tile * torch.rsqrt(mean_square + eps), weight, out=result)
    return out


def rotary_periods(head_dim: int, base: float) -> NDArray[np.float32]:
    """Return base ** (2 i / head_dim), float32 [head_dim / 2]: one over each frequency, rounded likewise."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.asarray(np.power(np.float32(base), exponents, dtype=np.float32), np.float32)


def rotary_frequencies(
    head_dim: int, base: float, linear_factor: float = 1.0, factors: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Return base ** (-2 i / head_dim), float32 [head_dim / 2] (Su et al. 2021).

    Frequencies, and the angles that are positions times these, are rounded to float32, as in training and in
    `transformers`; far from position 0 that rounding is larger than any other in a model, so it is part of
    the definition.

    Args:
        head_dim: even.
        base: of the powers.
        linear_factor: divides all frequencies (linear scaling of positions).
        factors: float32 [head_dim / 2] that divide one frequency each, or none.
    """
    frequencies = np.float32(1.0) / rotary_periods(head_dim, base)
    if factors is not None:
        frequencies = frequencies / factors
    return np.asarray(frequencies / np.float32(linear_factor), np.float32)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (i, i + head_dim / 2) of each head.

    Args:
        x: float32 [num_rows, num_heads, head_dim].
        cos, sin: float32 [num_rows, 1, head_dim / 2].

    Returns:
        float32 of x's shape.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (2 i, 2 i + 1) of each head; shapes as in `rotate_halves`."""
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up (Shazeer 2020), float32 [num_rows, size]."""
    return torch.nn.functional.silu(gate).mul_(up)


def gated_gelu_tanh(gate: Tensor, up: Tensor) -> Tensor:
    """Return gelu(gate) * up with the tanh form of gelu, float32 [num_rows, size]."""
    return torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)


def query_tile(group: int) -> int:
    """Return how many query rows one attention call takes, where `group` query heads share a key head."""
    return max(1, ROW_TILE // group)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    start: int,
    first_key: int,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attend from one tile of one sequence's query rows.

    The queries that share a key head are the columns of products of `ROW_TILE` columns, as rows are in
    `linear`. Every block of keys is multiplied as a whole; what a query may not see is masked and adds exact
    zeros. So its sums run over the blocks that it sees, in their order, whichever others share the tile.

    Args:
        queries: float32 [n, num_heads, head_dim], n at most `query_tile`, at consecutive positions.
        keys, values: float32 [m, num_kv_heads, head_dim] of consecutive positions from `first_key`; m and
            first_key are multiples of `KV_BLOCK`, and positions past the last query hold any finite numbers.
        start: position of the first query.
        first_key: position of the first key.
        scale: factor on the scores.
        window: how many positions a query sees, its own included; none is all before it.

    Returns:
        float32 [n, num_heads, head_dim].
    """
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    num_columns = num_rows * group
    columns = queries.new_zeros(num_kv_heads, padded(query_tile(group) * group, ROW_TILE), head_dim)
    by_key_head = queries.view(num_rows, num_kv_heads, group, head_dim).transpose(0, 1)
    columns[:, :num_columns] = by_key_head.reshape(num_kv_heads, num_columns, head_dim) * scale
    rows = torch.arange(columns.shape[1], device=queries.device).div_(group, rounding_mode="floor")
    positions = rows.clamp_(max=num_rows - 1) + start

    mixed = torch.empty_like(columns)
    for first in range(0, columns.shape[1], ROW_TILE):
        part = slice(first, first + ROW_TILE)
        mixed[:, part] = _attend_columns(columns[:, part], keys, values, positions[part], first_key, window)
    by_key_head = mixed[:, :num_columns].view(num_kv_heads, num_rows, group, head_dim)
    return by_key_head.transpose(0, 1).reshape(num_rows, num_heads, head_dim)


def _attend_columns(
    columns: Tensor, keys: Tensor, values: Tensor, positions: Tensor, first_key: int, window: int | None
) -> Tensor:
    """Attend from exactly ROW_TILE scaled queries of each key head.

    Args:
        columns: float32 [num_kv_heads, ROW_TILE, head_dim].
        keys, values: as in `attend`.
        positions: int64 [ROW_TILE], the position of each query.
        first_key, window: as in `attend`.

    Returns:
        float32 [num_kv_heads, ROW_TILE, head_dim].
    """
    key_blocks, value_blocks = torch.split(keys, KV_BLOCK), torch.split(values, KV_BLOCK)
    scores = columns.new_empty(len(key_blocks), len(columns), KV_BLOCK, ROW_TILE)
    for block, block_scores in zip(key_blocks, scores, strict=True):
        torch.bmm(block.transpose(0, 1), columns.transpose(1, 2), out=block_scores)
    scores.masked_fill_(_hidden(positions, first_key, len(key_blocks), window), -torch.inf)
    # The greatest score over all blocks is exact in any order, so the sums below need no rescaling.
    weights = scores.sub_(scores.amax(dim=(0, 2), keepdim=True)).exp_()

    total = weights[0].sum(1, keepdim=True)
    mixed = torch.bmm(value_blocks[0].permute(1, 2, 0), weights[0])
    for block_weights, block in zip(weights[1:], value_blocks[1:], strict=True):
        total = total + block_weights.sum(1, keepdim=True)
        mixed = mixed + torch.bmm(block.permute(1, 2, 0), block_weights)
    return (mixed / total).transpose(1, 2)


def _hidden(positions: Tensor, first_key: int, num_blocks: int, window: int | None) -> Tensor:
    """Return which keys each query may not see: bool [num_blocks, 1, KV_BLOCK, ROW_TILE]."""
    keys = torch.arange(first_key, first_key + num_blocks * KV_BLOCK, device=positions.device)
    keys = keys.view(num_blocks, 1, KV_BLOCK, 1)
    hidden = keys > positions
    return hidden if window is None else hidden | (keys <= positions - window)
