"""A row's logits are bit-equal however the rows around it are batched, chunked, cached or threaded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.kernels import threads
from paceline.models.build import choose_decoder
from paceline.models.decoder import Decoder
from paceline.models.gguf_file import GGUFFile
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.kv_store import PagedKVStore
from paceline.models.load import gguf_decoder
from paceline.models.native_decoder import NativeDecoder, NativeKVStore
from paceline.models.options import Kernels, LoadOptions
from tests.tiny_models import FAMILY_EXAMPLES

BLOCK_SIZE = 16
TENSOR_TYPES = {"reference": "F32", "native": "Q4_1"}
"""How the matrices of the tiny models are stored for each kind of decoder."""

AnyDecoder = Decoder | NativeDecoder


@pytest.fixture(autouse=True)
def _default_pool() -> Iterator[None]:
    yield
    threads.set_num_threads(None)


def build(path: Path, kernels: str) -> AnyDecoder:
    options, file = LoadOptions(Kernels(kernels)), GGUFFile.open(path)
    return choose_decoder(*gguf_decoder(file), torch.device("cpu"), options)  # type: ignore[return-value]


@pytest.fixture(scope="module", params=[f"{name} {how}" for name in FAMILY_EXAMPLES for how in TENSOR_TYPES])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AnyDecoder:
    name, kernels = request.param.split()
    example = replace(FAMILY_EXAMPLES[name], tensor_type=TENSOR_TYPES[kernels])
    return build(example.write(tmp_path_factory.mktemp("tiny") / "model.gguf"), kernels)


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), generator=generator).tolist()


def fill_with_nan(kv: KVStore) -> None:
    if isinstance(kv, NativeKVStore):
        kv.native.halves().fill(np.float16(np.nan).view(np.uint16))
    elif isinstance(kv, PagedKVStore):
        kv.rows.fill_(torch.nan)


def run(decoder: AnyDecoder, token_ids: Sequence[int], cuts: Sequence[int]) -> torch.Tensor:
    """Return logits [num_tokens, vocab] of one sequence in chunks that end at `cuts` and at its end."""
    num_blocks = len(token_ids) // BLOCK_SIZE + 1
    kv = decoder.allocate_kv(num_blocks, BLOCK_SIZE)
    edges = [0, *cuts, len(token_ids)]
    parts = []
    for start, end in itertools.pairwise(edges):
        part = SequenceSlice(token_ids[start:end], start, range(num_blocks), end - start)
        parts.append(decoder.forward([part], kv))
    return torch.cat(parts)


@pytest.mark.parametrize("chunk", [1, 7, 16, 100])
def test_chunk_borders(decoder: AnyDecoder, chunk: int) -> None:
    token_ids = tokens(300)  # over one KV block
    whole = run(decoder, token_ids, [])
    assert torch.equal(run(decoder, token_ids, range(chunk, 300, chunk)), whole)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_thread_counts(decoder: AnyDecoder, count: int) -> None:
    token_ids = tokens(70)
    threads.set_num_threads(1)
    expected = run(decoder, token_ids, [])
    threads.set_num_threads(count)
    assert torch.equal(run(decoder, token_ids, []), expected)
    assert torch.equal(run(decoder, token_ids, [50, 51, 55]), expected)


def test_every_number_of_rows(decoder: AnyDecoder) -> None:
    """A step of n rows after a prefix gives each row what plain decoding gives it."""
    token_ids = tokens(30 + 64)
    expected = run(decoder, token_ids, range(30, 94))
    for num_rows in range(1, 65):
        logits = run(decoder, token_ids[: 30 + num_rows], [30])
        assert torch.equal(logits[30:], expected[30 : 30 + num_rows]), num_rows


@pytest.mark.parametrize("num_rows", [65, 96, 127, 128, 129, 255, 256, 257, 383, 511, 512])
def test_many_rows(decoder: AnyDecoder, num_rows: int) -> None:
    """As above, up to the most rows of a step; chunks of 8 and of 512 rows run through different code."""
    token_ids = tokens(5 + num_rows)
    expected = run(decoder, token_ids, range(5, 5 + num_rows, 8))
    assert torch.equal(run(decoder, token_ids, [5]), expected)


def test_batch_mates(decoder: AnyDecoder) -> None:
    """Prefill chunks, verify rows and single rows share a pass; each gets what it gets alone."""
    lengths, num_last = [5, 40, 1, 290, 33, 18], [1, 6, 1, 3, 33, 4]
    sequences = [tokens(length, seed) for seed, length in enumerate(lengths)]
    alone = [run(decoder, sequence, []) for sequence in sequences]
    kv = decoder.allocate_kv(64, BLOCK_SIZE)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist()
    blocks = [[order.pop() for _ in range(length // BLOCK_SIZE + 1)] for length in lengths]
    starts = [length - last for length, last in zip(lengths, num_last, strict=True)]
    prefixes = [
        SequenceSlice(sequence[:start], 0, block_ids, 0)
        for sequence, start, block_ids in zip(sequences, starts, blocks, strict=True)
        if start
    ]
    assert decoder.forward(prefixes, kv).shape == (0, decoder.vocab_size)
    lasts = [
        SequenceSlice(sequence[start:], start, block_ids, len(sequence) - start)
        for sequence, start, block_ids in zip(sequences, starts, blocks, strict=True)
    ]
    logits = decoder.forward(lasts, kv).split(num_last)
    for result, expected, last in zip(logits, alone, num_last, strict=True):
        assert torch.equal(result, expected[-last:])


def test_rejected_drafts_leave_no_trace(decoder: AnyDecoder) -> None:
    """KV that a rejected draft wrote is overwritten, and garbage beyond a sequence's end is never read."""
    token_ids = tokens(40)
    expected = run(decoder, token_ids, [])
    kv = decoder.allocate_kv(4, BLOCK_SIZE)
    fill_with_nan(kv)
    blocks = [2, 0, 3]
    decoder.forward([SequenceSlice(token_ids[:20], 0, blocks, 0)], kv)
    decoder.forward([SequenceSlice([token_ids[20], 9, 9, 9, 9, 9], 20, blocks, 6)], kv)
    logits = decoder.forward([SequenceSlice(token_ids[21:], 21, blocks, 19)], kv)
    assert torch.equal(logits, expected[21:])


@pytest.mark.models
@pytest.mark.parametrize("kernels", TENSOR_TYPES)
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_a_real_model(name: str, kernels: str, preset_path: Callable[[str], Path]) -> None:
    """Prefill whole and in pieces, plain decoding, verification beside batch mates: the same bits."""
    decoder = build(preset_path(name), kernels)
    token_ids = tokens(45)
    expected = run(decoder, token_ids, [])
    assert torch.equal(run(decoder, token_ids, [16, 17, 33]), expected)
    threads.set_num_threads(1)
    assert torch.equal(run(decoder, token_ids, range(38, 45)), expected)
    threads.set_num_threads(3)
    kv = decoder.allocate_kv(9, BLOCK_SIZE)
    others = [tokens(23, seed=1), tokens(9, seed=2)]
    decoder.forward([SequenceSlice(token_ids[:40], 0, [8, 1, 5], 0)], kv)
    verify = SequenceSlice(token_ids[40:], 40, [8, 1, 5], 5)
    mates = [SequenceSlice(others[0], 0, [0, 2], 1), verify, SequenceSlice(others[1], 0, [3], 9)]
    assert torch.equal(decoder.forward(mates, kv)[1:6], expected[40:])
