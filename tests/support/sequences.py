"""Running one sequence through a decoder in any way that an engine may, for tests that compare the bits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from paceline.models.build import choose_decoder
from paceline.models.decoder import Decoder
from paceline.models.gguf_file import GGUFFile
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.kv_store import PagedKVStore
from paceline.models.load import gguf_decoder
from paceline.models.native_decoder import NativeDecoder, NativeKVStore
from paceline.models.options import Kernels, LoadOptions

BLOCK_SIZE = 16

AnyDecoder = Decoder | NativeDecoder


def build(path: Path, kernels: str) -> AnyDecoder:
    options, file = LoadOptions(Kernels(kernels)), GGUFFile.open(path)
    return choose_decoder(*gguf_decoder(file), torch.device("cpu"), options)  # type: ignore[return-value]


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), generator=generator).tolist()


def fill_with_nan(kv: KVStore) -> None:
    if isinstance(kv, NativeKVStore):
        kv.native.halves().fill(np.float16(np.nan).view(np.uint16))
    elif isinstance(kv, PagedKVStore):
        kv.rows.fill_(torch.nan)


def bits_of(kv: KVStore, block_ids: Sequence[int]) -> bytes:
    """Return the keys and values of whole blocks, in the order given."""
    if isinstance(kv, NativeKVStore):
        return kv.native.halves().reshape(kv.num_blocks, -1)[list(block_ids)].tobytes()
    assert isinstance(kv, PagedKVStore)
    return kv.rows.reshape(kv.num_blocks, -1)[list(block_ids)].numpy().tobytes()


def run(decoder: AnyDecoder, token_ids: Sequence[int], cuts: Sequence[int]) -> torch.Tensor:
    """Return logits [num_tokens, vocab] of one sequence in chunks that end at `cuts` and at its end."""
    kv = decoder.allocate_kv(len(token_ids) // BLOCK_SIZE + 1, BLOCK_SIZE)
    return run_on(decoder, kv, range(kv.num_blocks), token_ids, cuts)


def run_on(
    decoder: AnyDecoder,
    kv: KVStore,
    block_ids: Sequence[int],
    token_ids: Sequence[int],
    cuts: Sequence[int] = (),
    start: int = 0,
) -> torch.Tensor:
    """Return the same of the positions from `start` on, with KV that is there already."""
    parts = []
    for begin, end in itertools.pairwise([start, *cuts, len(token_ids)]):
        parts.append(
            decoder.forward([SequenceSlice(token_ids[begin:end], begin, block_ids, end - begin)], kv)
        )
    return torch.cat(parts)
