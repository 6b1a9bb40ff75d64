"""The one decoder: what its configuration says, over a paged cache, in rows that never touch one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.kernels import reference
from paceline.kernels.threads import run_parts
from paceline.models.decoder_config import Activation, DecoderConfig, RotaryLayout
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.kv_arena import KVArena, KVLayout
from paceline.models.kv_store import PagedKVStore
from paceline.models.rotary import RotaryTable
from paceline.models.weights import DecoderWeights, LayerWeights

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where one sequence's rows are: in the batch, in its own positions, and in the cache."""

    first: int
    """Index of its first row in the batch."""
    start: int
    """Position of its first row."""
    count: int
    slots: Tensor
    """Cache slots of positions 0 .. start + count - 1: int64."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """A ragged batch laid out as rows."""

    rows: tuple[_Rows, ...]
    token_ids: list[int]
    slots: Tensor  # int64 [num_rows]
    positions: Tensor  # int64 [num_rows, padded with 0 to whole tiles]
    end: int  # above all positions
    wanted: Tensor  # int64 [num_logits]: rows whose logits are wanted
    store: PagedKVStore


def reference_workspace(config: DecoderConfig, num_rows: int, num_logits: int, num_positions: int) -> int:
    """Return about how many bytes a forward pass takes besides weights and KV, its logits included.

    PyTorch frees intermediates as it goes, so those of the widest stage count, twice.
    """
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    widths = 3 * config.hidden_size + 2 * max(qkv, 3 * config.intermediate_size)
    rows = reference.padded(num_rows, reference.ROW_TILE)
    logits = reference.padded(num_logits, reference.ROW_TILE)
    gathered = 2 * config.num_kv_heads * config.head_dim * reference.padded(num_positions, reference.KV_BLOCK)
    return _FLOAT_BYTES * (rows * widths + gathered + 2 * logits * config.vocab_size)


class Decoder:
    """A causal language model; see `models.interface.CausalModel` for the contract."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, device: torch.device) -> None:
        """Wire weights that are on `device` as `config` says."""
        self.config = config
        self._weights = weights
        self._device = device
        self._tables = {
            rotary: RotaryTable(rotary, config.head_dim, weights.rope_factors, device)
            for rotary in {config.rotary_of(layer) for layer in range(config.num_layers)}
        }
        is_interleaved = config.rotary_layout is RotaryLayout.INTERLEAVED
        self._rotate = reference.rotate_interleaved if is_interleaved else reference.rotate_halves
        is_gelu = config.activation is Activation.GELU_TANH
        self._activate = reference.gated_gelu_tanh if is_gelu else reference.gated_silu

    @property
    def vocab_size(self) -> int:
        """Width of a row of logits, padding rows included."""
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        """Greatest number of positions the model was made for."""
        return self.config.context_length

    def kv_bytes_per_token(self) -> int:
        """Bytes of KV for one position, all layers."""
        return 2 * _FLOAT_BYTES * self.config.num_layers * self.config.num_kv_heads * self.config.head_dim

    @property
    def kv_layout(self) -> KVLayout:
        """What the model asks of a page of KV memory."""
        row_bytes = _FLOAT_BYTES * self.config.num_kv_heads * self.config.head_dim
        return KVLayout(self.kv_bytes_per_token(), row_bytes)

    def kv_in(self, arena: KVArena, block_size: int) -> PagedKVStore:
        """Return KV memory in pages that other models may share, `block_size` positions in each."""
        arena.check(self.kv_layout, block_size)
        return PagedKVStore(arena, block_size, self.config.num_kv_heads, self.config.head_dim)

    def allocate_kv(self, num_blocks: int, block_size: int) -> PagedKVStore:
        """Return KV memory of its own, for `num_blocks` blocks of `block_size` positions.

        Raises:
            CapacityError: the device does not have it.
        """
        page_bytes = block_size * self.kv_bytes_per_token()
        return self.kv_in(KVArena(num_blocks, page_bytes, self._device), block_size)

    def workspace_bytes_for(self, num_rows: int, num_logits: int, num_positions: int) -> int:
        """Most bytes that a forward pass takes besides weights and KV, its logits included; an estimate."""
        return reference_workspace(self.config, num_rows, num_logits, num_positions)

    @torch.inference_mode()
    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> Tensor:
        """Compute all rows of all slices in one pass, writing their KV.

        Returns:
            float32 logits [sum of num_logits, vocab_size], in the order of `slices`.
        """
        batch = self._lay_out(slices, kv)
        hidden = self._embed(batch)
        turns = {rotary: table.at(batch.positions, batch.end) for rotary, table in self._tables.items()}
        for layer, weights in enumerate(self._weights.layers):
            cos, sin = turns[self.config.rotary_of(layer)]
            hidden = hidden + self._attention(layer, weights, hidden, cos, sin, batch)
            hidden = hidden + self._feed_forward(weights, hidden)
        return self._logits(hidden, batch)

    def _lay_out(self, slices: Sequence[SequenceSlice], kv: KVStore) -> _Batch:
        if not isinstance(kv, PagedKVStore):
            raise TypeError(f"KV of {type(kv).__name__}; expected what this model's allocate_kv returned")
        rows: list[_Rows] = []
        token_ids: list[int] = []
        wanted: list[int] = []
        for item in slices:
            slots = kv.slots(item.block_ids, 0, item.end)
            rows.append(_Rows(len(token_ids), item.start, len(item.token_ids), slots))
            token_ids.extend(item.token_ids)
            wanted.extend(range(len(token_ids) - item.num_logits, len(token_ids)))
        positions = [position for item in slices for position in range(item.start, item.end)]
        positions += [0] * (reference.padded(len(token_ids), reference.ROW_TILE) - len(token_ids))
        no_slots = torch.empty(0, dtype=torch.int64, device=self._device)
        return _Batch(
            rows=tuple(rows),
            token_ids=token_ids,
            slots=torch.cat([no_slots, *(item.slots[item.start :] for item in rows)]),
            positions=torch.tensor(positions, dtype=torch.int64, device=self._device),
            end=max((item.end for item in slices), default=1),
            wanted=torch.tensor(wanted, dtype=torch.int64, device=self._device),
            store=kv,
        )

    def _embed(self, batch: _Batch) -> Tensor:
        rows = self._weights.embedding.rows(batch.token_ids)
        if self.config.embedding_scale != 1.0:
            rows = rows * self.config.embedding_scale
        return _pad_rows(rows)

    def _attention(
        self, layer: int, weights: LayerWeights, hidden: Tensor, cos: Tensor, sin: Tensor, batch: _Batch
    ) -> Tensor:
        config = self.config
        normed = reference.rms_norm(hidden, weights.attention_norm, config.norm_eps)
        fused = reference.linear(normed, weights.qkv, weights.qkv_bias)
        heads = fused.view(len(fused), config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        sizes = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        queries, keys, values = torch.split(heads, sizes, dim=1)
        if weights.query_norm is not None and weights.key_norm is not None:
            queries = reference.rms_norm(queries, weights.query_norm, config.norm_eps)
            keys = reference.rms_norm(keys, weights.key_norm, config.norm_eps)
        queries, keys = self._rotate(queries, cos, sin), self._rotate(keys, cos, sin)
        num_rows = len(batch.token_ids)
        batch.store.write(layer, batch.slots, keys[:num_rows], values[:num_rows])
        mixed = self._attend(layer, queries, batch).flatten(1)
        out = reference.linear(mixed, weights.output, weights.output_bias)
        return self._post_norm(out, weights.post_attention_norm)

    def _attend(self, layer: int, queries: Tensor, batch: _Batch) -> Tensor:
        """Attend from float32 [num_rows, num_heads, head_dim]; padding rows give zeros."""
        out = torch.zeros_like(queries)
        window, scale = self.config.window_of(layer), self.config.score_scale
        tile = reference.query_tile(self.config.num_heads // self.config.num_kv_heads)
        caches = [self._read_cache(layer, rows, batch, window) for rows in batch.rows]
        tiles = [
            (sequence, offset)
            for sequence, rows in enumerate(batch.rows)
            for offset in range(0, rows.count, tile)
        ]

        def attend(part: int) -> None:
            sequence, offset = tiles[part]
            rows, (first_key, keys, values) = batch.rows[sequence], caches[sequence]
            begin, start = rows.first + offset, rows.start + offset
            count = min(tile, rows.count - offset)
            low = _first_key(start, window) - first_key
            high = reference.padded(start + count, reference.KV_BLOCK) - first_key
            out[begin : begin + count] = reference.attend(
                queries[begin : begin + count],
                keys[low:high],
                values[low:high],
                start,
                first_key + low,
                scale,
                window,
            )

        if self._device.type == "cpu":
            run_parts(attend, len(tiles))
        else:  # one queue of work, whichever thread fills it
            for part in range(len(tiles)):
                attend(part)
        return out

    def _read_cache(
        self, layer: int, rows: _Rows, batch: _Batch, window: int | None
    ) -> tuple[int, Tensor, Tensor]:
        first_key = _first_key(rows.start, window)
        return first_key, *batch.store.read(layer, rows.slots[first_key:])

    def _feed_forward(self, weights: LayerWeights, hidden: Tensor) -> Tensor:
        normed = reference.rms_norm(hidden, weights.feed_forward_norm, self.config.norm_eps)
        gate, up = reference.linear(normed, weights.gate_up, weights.gate_up_bias).chunk(2, dim=-1)
        out = reference.linear(self._activate(gate, up), weights.down, weights.down_bias)
        return self._post_norm(out, weights.post_feed_forward_norm)

    def _post_norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else reference.rms_norm(x, weight, self.config.norm_eps)

    def _logits(self, hidden: Tensor, batch: _Batch) -> Tensor:
        rows = _pad_rows(hidden[batch.wanted])
        normed = reference.rms_norm(rows, self._weights.final_norm, self.config.norm_eps)
        # Rows that lie side by side, since native sampling reads each as one run of memory.
        return reference.linear(normed, self._weights.head)[: len(batch.wanted)].contiguous()


def _first_key(start: int, window: int | None) -> int:
    """Return the first position that a tile starting at `start` reads, a multiple of KV_BLOCK."""
    first = 0 if window is None else max(0, start - window + 1)
    return first // reference.KV_BLOCK * reference.KV_BLOCK


def _pad_rows(rows: Tensor) -> Tensor:
    """Add rows of zeros up to whole tiles."""
    missing = reference.padded(len(rows), reference.ROW_TILE) - len(rows)
    return torch.nn.functional.pad(rows, (0, 0, 0, missing))
