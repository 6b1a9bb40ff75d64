"""Native attention against float64 NumPy, and the promise that a row's bits depend on what it sees alone.

Bound: queries and halves enter as they are; products, sums and exponentials are float32, with at most 256
roundings of 2^-24 in a row, and few of those are of one sign: 1e-5 of a value of size 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from paceline.kernels import _native, reference
from paceline.kernels.attention import BLOCK_SIZE, LayerStore, Rows, attend

BOUND = 1e-5


def bits(x: np.ndarray) -> np.ndarray:
    """Return floats as integers, so that equality means equal bits."""
    return x.view(np.uint32)


@dataclass
class Case:
    """One sequence with its keys and values in a paged store whose other slots hold NaN."""

    context: int
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    window: int = 0
    seed: int = 0
    scale: float = 0.2
    store: LayerStore = field(init=False)
    queries: np.ndarray = field(init=False)
    block_ids: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        num_blocks = -(-self.context // BLOCK_SIZE)
        shape = (self.context, self.num_kv_heads, self.head_dim)
        self.keys = rng.standard_normal(shape).astype(np.float16)
        self.values = rng.standard_normal(shape).astype(np.float16)
        self.queries = rng.standard_normal((self.context, self.num_heads, self.head_dim)).astype(np.float32)
        self.block_ids = rng.permutation(num_blocks + 3)[:num_blocks]
        self.store = LayerStore.allocate(num_blocks + 3, self.num_kv_heads, self.head_dim)
        self.store.keys[:] = np.nan
        self.store.values[:] = np.nan
        for position in range(self.context):
            block, slot = self.block_ids[position // BLOCK_SIZE], position % BLOCK_SIZE
            self.store.keys[block, :, :, slot] = self.keys[position]
            self.store.values[block, :, slot] = self.values[position]

    def rows(self, start: int, end: int) -> Rows:
        return Rows(start, end - start, self.block_ids[: -(-end // BLOCK_SIZE)].tolist())

    def attend(self, start: int, end: int) -> np.ndarray:
        """Attend from the rows at positions start .. end - 1 in one call."""
        return attend(self.queries[start:end], self.store, [self.rows(start, end)], self.scale, self.window)

    def reference(self, position: int) -> np.ndarray:
        first = max(0, position + 1 - self.window) if self.window else 0
        group = self.num_heads // self.num_kv_heads
        keys = np.repeat(self.keys[first : position + 1].astype(np.float64), group, axis=1)
        values = np.repeat(self.values[first : position + 1].astype(np.float64), group, axis=1)
        scores = np.einsum("hd,nhd->hn", self.queries[position].astype(np.float64), keys) * self.scale
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("hn,nhd->hd", weights / weights.sum(axis=1, keepdims=True), values)


def check(case: Case, start: int, end: int) -> None:
    out = case.attend(start, end)
    for row in range(start, end):
        assert np.abs(out[row - start] - case.reference(row)).max() < BOUND


@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (4, 4), (12, 2), (16, 1)])
def test_equals_the_reference(isa: str, head_dim: int, heads: tuple[int, int]) -> None:
    case = Case(40, *heads, head_dim=head_dim, scale=head_dim**-0.5)
    check(case, 0, 9)
    check(case, 30, 40)


@pytest.mark.parametrize("context", [1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 300, 511, 513, 1030])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 8])
def test_any_context(isa: str, context: int, num_rows: int) -> None:
    check(Case(context, seed=context), max(0, context - num_rows), context)


@pytest.mark.parametrize("window", [1, 2, 16, 17, 100, 256, 300, 1000])
def test_sliding_window(isa: str, window: int) -> None:
    case = Case(700, window=window)
    for start in (0, 40, 250, 511, 690):
        check(case, start, start + 8)


def test_what_a_row_does_not_see_may_be_anything(isa: str) -> None:
    """Later rows of a draft may overflow to infinity, and blocks may hold what others left there."""
    case = Case(300, window=20)
    before = case.attend(280, 288)
    case.store.keys[case.block_ids[:16]] = np.nan  # before the window
    case.store.values[case.block_ids[:16]] = np.nan
    last = case.block_ids[287 // BLOCK_SIZE]
    case.store.keys[last, :, :, 287 % BLOCK_SIZE :] = np.inf
    case.store.values[last, :, 287 % BLOCK_SIZE :] = np.inf
    after = case.attend(280, 288)
    np.testing.assert_array_equal(bits(after[:7]), bits(before[:7]))
    assert np.isnan(after[7]).all()


@pytest.mark.parametrize("shape", [(12, 2, 128), (3, 1, 64), (16, 1, 80), (9, 3, 64), (4, 1, 256)])
@pytest.mark.parametrize("window", [0, 200])
def test_bits_do_not_depend_on_chunk_borders_or_rows_beside(
    isa: str,
    shape: tuple[int, int, int],
    window: int,
) -> None:
    case = Case(530, *shape, window=window, scale=shape[2] ** -0.5)
    alone = {row: case.attend(row, row + 1)[0] for row in (*range(40), 255, 256, 257, *range(495, 530))}
    for start, end in [
        (0, 530),
        (0, 1),
        (0, 33),
        (1, 8),
        (7, 300),
        (250, 259),
        (496, 530),
        (522, 530),
        (526, 530),
    ]:
        out = case.attend(start, end)
        for row in range(start, end):
            if row in alone:
                np.testing.assert_array_equal(
                    bits(out[row - start]), bits(alone[row]), err_msg=f"{row} of {start}..{end}"
                )


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_bits_do_not_depend_on_threads_or_batch_mates(
    isa: str, restore_native_threads: None, num_threads: int
) -> None:
    """Sequences of very different lengths share a call: only some are cut into tasks by partition."""
    cases = [Case(n, seed=n) for n in (5, 900, 33, 257, 600)]
    rows = [5, 3, 1, 8, 40]
    _native.set_num_threads(1)
    expected = np.concatenate([c.attend(c.context - n, c.context) for c, n in zip(cases, rows, strict=True)])
    offsets = np.cumsum([0, *[len(c.store.keys) for c in cases]])
    batch = []
    for case, n, offset in zip(cases, rows, offsets, strict=False):
        batch.append(Rows(case.context - n, n, (case.block_ids + offset).tolist()))
    store = LayerStore(
        np.concatenate([c.store.keys for c in cases]), np.concatenate([c.store.values for c in cases])
    )
    _native.set_num_threads(num_threads)
    queries = np.concatenate([c.queries[c.context - n :] for c, n in zip(cases, rows, strict=True)])
    out = attend(queries, store, batch, cases[0].scale)
    np.testing.assert_array_equal(bits(out), bits(expected))


def test_instruction_sets_with_fused_sums_agree_bit_for_bit() -> None:
    results = {}
    for name in _native.isas():
        _native.set_isa(name)
        results[name] = Case(530, 12, 2, 128).attend(500, 530)
    _native.set_isa(_native.isas()[-1])
    portable = results.pop("portable")
    for name, result in results.items():
        np.testing.assert_array_equal(bits(result), bits(next(iter(results.values()))), err_msg=name)
        assert np.abs(result - portable).max() < BOUND


def test_extreme_scores(isa: str) -> None:
    case = Case(600, scale=1e4)  # a weight of 1 at one position, 0 elsewhere
    check(case, 590, 600)
    case = Case(600, scale=0.0)  # equal weights
    check(case, 590, 600)


@pytest.mark.parametrize("num_rows", [*range(1, 34), 64, 128, 512])
def test_any_number_of_rows(isa: str, num_rows: int) -> None:
    """Some rows against the reference, each against itself among one row more."""
    case = Case(520, 6, 2, 24, seed=num_rows)
    start = 7 if num_rows == 512 else 520 - num_rows - 1
    out = case.attend(start, start + num_rows)
    for row in {0, num_rows // 2, num_rows - 1}:
        assert np.abs(out[row] - case.reference(start + row)).max() < BOUND
    np.testing.assert_array_equal(bits(case.attend(start - 1, start + num_rows)[1:]), bits(out))


def test_tiny_keys_and_values(isa: str) -> None:
    """Halves below the smallest normal one count in full."""
    case = Case(300, scale=1.0)
    smallest = np.float16(2.0**-24)
    case.store.keys[:], case.keys[:] = smallest, smallest
    steps = np.random.default_rng(0).integers(-1000, 1000, case.values.shape)
    case.values[:] = steps * np.float64(smallest)
    for position in range(300):
        block, slot = case.block_ids[position // BLOCK_SIZE], position % BLOCK_SIZE
        case.store.values[block, :, slot] = case.values[position]
    case.queries *= np.float32(1e5)
    for row in (0, 17, 299):
        out, expected = case.attend(row, row + 1)[0], case.reference(row)
        assert np.abs(out - expected).max() < BOUND * float(np.abs(case.values).max())
    assert np.abs(case.values).max() < 2.0**-14


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_a_query_out_of_range_spoils_its_own_row_alone(isa: str, value: float) -> None:
    case = Case(300)
    before = case.attend(290, 298)
    case.queries[293, 1, 5] = value
    after = case.attend(290, 298)
    assert np.isnan(after[3, 1]).all() or value == 3e38
    after[3, 1] = before[3, 1]
    np.testing.assert_array_equal(bits(after), bits(before))


@pytest.mark.parametrize("num_others", [0, 2])
def test_zero_rows(isa: str, num_others: int) -> None:
    case = Case(20)
    assert case.attend(20, 20).shape == (0, 4, 64)
    batch = [case.rows(20, 20)] * num_others + [case.rows(18, 20)] + [case.rows(20, 20)] * num_others
    out = attend(case.queries[18:], case.store, batch, case.scale)
    np.testing.assert_array_equal(bits(out), bits(case.attend(18, 20)))


@pytest.mark.parametrize("window", [None, 40])
def test_close_to_the_pytorch_reference(isa: str, window: int | None) -> None:
    case = Case(300, 12, 2, 128, window=window or 0, scale=128**-0.5)
    padded = np.zeros((2, 512, 2, 128), np.float32)
    padded[0, :300], padded[1, :300] = case.keys, case.values
    keys, values = torch.from_numpy(padded)
    tile = reference.query_tile(12 // 2)
    expected = [
        reference.attend(
            torch.from_numpy(case.queries[start : min(start + tile, 300)]),
            keys,
            values,
            start,
            0,
            case.scale,
            window,
        )
        for start in range(292, 300, tile)
    ]
    assert np.abs(case.attend(292, 300) - torch.cat(expected).numpy()).max() < BOUND


def test_what_cannot_be_is_refused() -> None:
    case = Case(20)
    queries = case.queries[18:]
    good = case.rows(18, 20)

    def call(
        rows: Rows = good, queries: np.ndarray = queries, store: LayerStore = case.store, window: int = 0
    ) -> None:
        attend(queries, store, [rows], 1.0, window)

    call()
    with pytest.raises(ValueError, match="block id is out of range"):
        call(Rows(18, 2, [0, len(case.store.keys)]))
    with pytest.raises(ValueError, match="block id is out of range"):
        call(Rows(18, 2, [-1, 0]))
    with pytest.raises(ValueError, match="do not cover the last row's position"):
        call(Rows(31, 2, good.block_ids))
    with pytest.raises(ValueError, match="sum up to the rows of queries"):
        call(Rows(18, 1, good.block_ids))
    with pytest.raises(ValueError, match="a window of -1 positions"):
        call(window=-1)
    with pytest.raises(ValueError, match="3 heads on 2 kv heads; a multiple of them"):
        call(queries=np.ascontiguousarray(queries[:, :3]))
    with pytest.raises(ValueError, match="queries and keys disagree in head_dim"):
        call(queries=np.ascontiguousarray(queries[:, :, :32]))
    with pytest.raises(ValueError, match=r"keys must be \[num_blocks"):
        call(store=LayerStore(case.store.keys, case.store.keys))
    with pytest.raises(ValueError, match="head_dim 520; a multiple of 8 up to 512 is supported"):
        call(queries=np.zeros((2, 4, 520), np.float32), store=LayerStore.allocate(5, 2, 520))
    with pytest.raises(TypeError):
        call(queries=queries.astype(np.float64))
