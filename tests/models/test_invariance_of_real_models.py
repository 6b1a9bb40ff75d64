"""The same on real models, each clause of the promise by itself and for every instruction set.

What is expected is plain decoding, one row a pass on one thread; a pass of portable code takes ten times as
long as one of vectors, so it answers for fewer of the numbers of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from paceline.kernels import _native, threads
from paceline.models.interface import SequenceSlice
from support.sequences import BLOCK_SIZE, AnyDecoder, build, fill_with_nan, run, run_on, tokens

pytestmark = pytest.mark.models
SMALL = "smollm2-135m-instruct"
TOKEN_IDS = tokens(48)
PREFIX = 9
ROW_COUNTS = range(1, 34)
PORTABLE_ROW_COUNTS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 33)


@pytest.fixture(autouse=True)
def _default_pool() -> Iterator[None]:
    yield
    threads.set_num_threads(None)


@pytest.fixture(scope="module")
def small(preset_path: Callable[[str], Path]) -> AnyDecoder:
    return build(preset_path(SMALL), "native")


@pytest.fixture(scope="module")
def decoded(small: AnyDecoder) -> Callable[[str], torch.Tensor]:
    """Return what plain decoding gives under an instruction set."""

    @cache
    def decode(isa: str) -> torch.Tensor:
        assert _native.isa() == isa
        threads.set_num_threads(1)
        logits = run(small, TOKEN_IDS, range(1, len(TOKEN_IDS)))
        threads.set_num_threads(None)
        return logits

    return decode


@pytest.fixture
def expected(isa: str, decoded: Callable[[str], torch.Tensor]) -> torch.Tensor:
    return decoded(isa)


def test_any_number_of_rows(isa: str, small: AnyDecoder, expected: torch.Tensor) -> None:
    kv = small.allocate_kv(3, BLOCK_SIZE)
    run_on(small, kv, range(3), TOKEN_IDS[:PREFIX])
    for count in PORTABLE_ROW_COUNTS if isa == "portable" else ROW_COUNTS:
        logits = run_on(small, kv, range(3), TOKEN_IDS[: PREFIX + count], start=PREFIX)
        assert torch.equal(logits, expected[PREFIX : PREFIX + count]), count


@pytest.mark.parametrize("count", [64, 128, 512])
def test_many_rows(isa: str, small: AnyDecoder, count: int) -> None:
    if isa == "portable":
        count //= 8
    token_ids = tokens(PREFIX + count)
    by_eights = run(small, token_ids, range(PREFIX, PREFIX + count, 8))
    assert torch.equal(run(small, token_ids, [PREFIX]), by_eights)


@pytest.mark.parametrize("cuts", [[], [1], [16], [17, 31], [16, 32], [7, 14, 21, 28, 35, 42]], ids=str)
def test_any_chunk_border(isa: str, small: AnyDecoder, expected: torch.Tensor, cuts: list[int]) -> None:
    assert torch.equal(run(small, TOKEN_IDS, cuts), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_any_number_of_threads(isa: str, small: AnyDecoder, expected: torch.Tensor, count: int) -> None:
    threads.set_num_threads(count)
    assert torch.equal(run(small, TOKEN_IDS, [30, 31, 35]), expected)


def test_any_batch_mates(isa: str, small: AnyDecoder, expected: torch.Tensor) -> None:
    """Rows to verify, between a prefill chunk, a row that decodes, and another chunk."""
    kv, blocks = small.allocate_kv(9, BLOCK_SIZE), [8, 1, 5]
    small.forward([SequenceSlice(TOKEN_IDS[:40], 0, blocks, 0), SequenceSlice([3, 4], 0, [6], 0)], kv)
    mates = [
        SequenceSlice(tokens(23, seed=1), 0, [0, 2], 1),
        SequenceSlice(TOKEN_IDS[40:], 40, blocks, 8),
        SequenceSlice([5], 2, [6], 1),
        SequenceSlice(tokens(9, seed=2), 0, [3], 9),
    ]
    assert torch.equal(small.forward(mates, kv)[1:9], expected[40:])


@pytest.mark.parametrize("how", ["decode", "verify", "prefill", "recompute after preemption"])
def test_any_origin_of_earlier_kv(isa: str, small: AnyDecoder, expected: torch.Tensor, how: str) -> None:
    kv, blocks = small.allocate_kv(8, BLOCK_SIZE), [6, 0, 3]
    fill_with_nan(kv)
    if how == "decode":
        run_on(small, kv, blocks, TOKEN_IDS[:40], range(1, 40))
    elif how == "verify":  # eight rows a step, of which the last four are rejected
        for start in range(0, 40, 4):
            drafts = [*TOKEN_IDS[start : start + 4], 7, 7, 7, 7]
            small.forward([SequenceSlice(drafts, start, blocks, 8)], kv)
    elif how == "prefill":
        run_on(small, kv, blocks, TOKEN_IDS[:40])
    else:
        run_on(small, kv, [1, 2, 4], TOKEN_IDS[:40], range(20, 40))
        fill_with_nan(kv)
        run_on(small, kv, blocks, TOKEN_IDS[:40], [29])
    assert torch.equal(run_on(small, kv, blocks, TOKEN_IDS, start=40), expected[40:])


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("name", [SMALL, "gemma-3-270m"])
def test_all_at_once(name: str, kernels: str, preset_path: Callable[[str], Path]) -> None:
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
