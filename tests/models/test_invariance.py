"""A row's logits are bit-equal however the rows around it are batched, chunked, cached or threaded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from paceline.kernels import threads
from paceline.models.build import build_decoder
from paceline.models.decoder import Decoder
from paceline.models.gguf_file import GGUFFile
from paceline.models.interface import SequenceSlice
from paceline.models.load import gguf_decoder
from tests.tiny_models import FAMILY_EXAMPLES

BLOCK_SIZE = 16


@pytest.fixture(autouse=True)
def _default_pool() -> Iterator[None]:
    yield
    threads.set_num_threads(None)


def build(path: Path) -> Decoder:
    return build_decoder(*gguf_decoder(GGUFFile.open(path)), torch.device("cpu"))


@pytest.fixture(scope="module", params=FAMILY_EXAMPLES)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return build(FAMILY_EXAMPLES[request.param].write(tmp_path_factory.mktemp("tiny") / "model.gguf"))


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), generator=generator).tolist()


def run(decoder: Decoder, token_ids: Sequence[int], cuts: Sequence[int]) -> torch.Tensor:
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
def test_chunk_borders(decoder: Decoder, chunk: int) -> None:
    token_ids = tokens(300)  # over one KV block
    whole = run(decoder, token_ids, [])
    assert torch.equal(run(decoder, token_ids, range(chunk, 300, chunk)), whole)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_thread_counts(decoder: Decoder, count: int) -> None:
    token_ids = tokens(70)
    threads.set_num_threads(1)
    expected = run(decoder, token_ids, [])
    threads.set_num_threads(count)
    assert torch.equal(run(decoder, token_ids, []), expected)
    assert torch.equal(run(decoder, token_ids, [50, 51, 55]), expected)


def test_every_number_of_rows(decoder: Decoder) -> None:
    """A step of n rows after a prefix gives each row what plain decoding gives it."""
    token_ids = tokens(30 + 64)
    expected = run(decoder, token_ids, range(30, 94))
    for num_rows in range(1, 65):
        logits = run(decoder, token_ids[: 30 + num_rows], [30])
        assert torch.equal(logits[30:], expected[30 : 30 + num_rows]), num_rows


def test_batch_mates(decoder: Decoder) -> None:
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


def test_rejected_drafts_leave_no_trace(decoder: Decoder) -> None:
    """KV that a rejected draft wrote is overwritten, and garbage beyond a sequence's end is never read."""
    token_ids = tokens(40)
    expected = run(decoder, token_ids, [])
    kv = decoder.allocate_kv(4, BLOCK_SIZE)
    kv.keys.fill_(torch.nan)
    kv.values.fill_(torch.nan)
    blocks = [2, 0, 3]
    decoder.forward([SequenceSlice(token_ids[:20], 0, blocks, 0)], kv)
    decoder.forward([SequenceSlice([token_ids[20], 9, 9, 9, 9, 9], 20, blocks, 6)], kv)
    logits = decoder.forward([SequenceSlice(token_ids[21:], 21, blocks, 19)], kv)
    assert torch.equal(logits, expected[21:])


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_a_real_model(name: str, preset_path: Callable[[str], Path]) -> None:
    """Prefill whole and in pieces, plain decoding, verification beside batch mates: the same bits."""
    decoder = build(preset_path(name))
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
