"""A row's logits are bit-equal however the rows around it are batched, chunked, cached or threaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from paceline.kernels import _native, reference, threads
from paceline.models.interface import SequenceSlice
from support.sequences import BLOCK_SIZE, AnyDecoder, bits_of, build, fill_with_nan, run, run_on, tokens
from tests.tiny_models import FAMILY_EXAMPLES

TENSOR_TYPES = {"reference": "F32", "native": "Q4_1"}
"""How the matrices of the tiny models are stored for each kind of decoder."""
INSTRUCTION_SETS = _native.isas()


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    isa = _native.isa()
    yield
    threads.set_num_threads(None)
    _native.set_isa(isa)


@dataclass(frozen=True)
class Variant:
    """A tiny model, and the instruction set that runs it; none on the reference's operators."""

    family: str
    isa: str | None

    def __str__(self) -> str:
        return f"{self.family}-{self.isa or 'reference'}"


VARIANTS = [Variant(family, isa) for family in FAMILY_EXAMPLES for isa in (None, *INSTRUCTION_SETS)]


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[AnyDecoder, str | None]:
    variant: Variant = request.param
    kernels = "native" if variant.isa else "reference"
    example = replace(FAMILY_EXAMPLES[variant.family], tensor_type=TENSOR_TYPES[kernels])
    path = example.write(tmp_path_factory.mktemp("tiny") / "model.gguf")
    return build(path, kernels), variant.isa


@pytest.fixture
def decoder(built: tuple[AnyDecoder, str | None]) -> AnyDecoder:
    if built[1] is not None:
        _native.set_isa(built[1])
    return built[0]


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


def test_recomputed_kv_is_the_kv_that_was_lost(decoder: AnyDecoder) -> None:
    """Preempted after some tokens, a sequence is prefilled again, elsewhere and in other chunks."""
    token_ids = tokens(90)
    expected = run(decoder, token_ids, range(40, 90))
    kv = decoder.allocate_kv(12, BLOCK_SIZE)
    run_on(decoder, kv, range(6), token_ids[:70], range(40, 70))
    fill_with_nan(kv)
    blocks = [11, 3, 7, 0, 9, 4]
    decoder.forward([SequenceSlice(token_ids[:53], 0, blocks, 0)], kv)
    assert torch.equal(run_on(decoder, kv, blocks, token_ids, range(70, 90), start=53), expected[53:])


@pytest.mark.parametrize("how", ["decode", "verify", "prefill", "chunked prefill beside others"])
def test_keys_and_values_have_the_same_bits_however_made(decoder: AnyDecoder, how: str) -> None:
    token_ids, blocks = tokens(64), [3, 1, 5, 0]
    expected = decoder.allocate_kv(8, BLOCK_SIZE)
    decoder.forward([SequenceSlice(token_ids, 0, blocks, 0)], expected)
    kv = decoder.allocate_kv(8, BLOCK_SIZE)
    if how == "decode":
        run_on(decoder, kv, blocks, token_ids, range(1, 64))
    elif how == "verify":  # six rows a step, the last three rejected
        for start in range(0, 64, 3):
            drafts = [*token_ids[start : start + 3], 7, 7, 7][: 64 - start]
            decoder.forward([SequenceSlice(drafts, start, blocks, len(drafts))], kv)
    elif how == "prefill":
        decoder.forward([SequenceSlice(token_ids, 0, blocks, 64)], kv)
    else:
        for start in range(0, 64, 32):
            mate = SequenceSlice(tokens(9, seed=start), 0, [7], 1)
            decoder.forward([mate, SequenceSlice(token_ids[start : start + 32], start, blocks, 0)], kv)
    assert bits_of(kv, blocks) == bits_of(expected, blocks)


@pytest.mark.parametrize("family", FAMILY_EXAMPLES)
def test_what_the_reference_multiplies_begins_at_whole_vectors(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library's sums may follow the address of what it is given, and then two loads of one file differ."""
    offsets: set[int] = set()

    def watched(multiply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(*operands: torch.Tensor, **out: torch.Tensor) -> torch.Tensor:
            offsets.update(one.data_ptr() % reference.ALIGNMENT for one in (*operands, *out.values()))
            return multiply(*operands, **out)

        return call

    path = FAMILY_EXAMPLES[family].write(tmp_path / "model.gguf")
    decoders = [build(path, "reference") for _ in range(3)]
    alike = [run(decoder, tokens(290), [7, 100, 101, 105]) for decoder in decoders]
    assert all(torch.equal(one, alike[0]) for one in alike)
    for name in ("mm", "bmm"):
        monkeypatch.setattr(torch, name, watched(getattr(torch, name)))
    for decoder in decoders:
        run(decoder, tokens(290), [7, 100, 101, 105])
    assert offsets == {0}
