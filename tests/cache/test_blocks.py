from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.cache import BlockPool, BlockTable
from paceline.errors import CapacityError


def test_blocks_leave_and_come_back() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(), pool.allocate()
    assert (first, second) == (0, 1)
    assert (pool.num_free, pool.num_used) == (1, 2)
    pool.release(first)
    assert pool.num_free == 2
    assert pool.allocate() == first


def test_a_shared_block_is_free_after_its_last_reference() -> None:
    pool = BlockPool(1)
    block = pool.allocate()
    pool.retain(block)
    pool.release(block)
    assert pool.num_free == 0
    pool.release(block)
    assert pool.num_free == 1


def test_an_empty_pool_says_so() -> None:
    pool = BlockPool(1)
    pool.allocate()
    with pytest.raises(CapacityError, match="all 1 KV blocks in use"):
        pool.allocate()
    with pytest.raises(CapacityError, match="at least one block"):
        BlockPool(0)


def test_a_free_block_is_not_released_or_shared() -> None:
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="free already"):
        pool.release(0)
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.retain(0)


def test_a_table_takes_all_the_blocks_it_needs_or_none() -> None:
    pool = BlockPool(3)
    table, other = BlockTable(pool, 4), BlockTable(pool, 4)
    assert table.reserve(5)
    assert table.block_ids == (0, 1)
    assert not other.reserve(5)
    assert other.block_ids == ()
    assert pool.num_free == 1
    table.trim(4)
    assert table.capacity == 4
    assert other.reserve(5)
    table.clear()
    other.clear()
    assert pool.num_free == 3


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=40))
def test_a_table_holds_what_its_last_call_left(calls: list[tuple[bool, int]]) -> None:
    pool = BlockPool(8)
    table = BlockTable(pool, 4)
    held = 0
    for is_reserve, num_tokens in calls:
        blocks = -(-num_tokens // 4)
        if is_reserve:
            assert table.reserve(num_tokens) is (blocks <= 8)
            held = max(held, blocks) if blocks <= 8 else held
        else:
            table.trim(num_tokens)
            held = min(held, blocks)
        assert len(table.block_ids) == len(set(table.block_ids)) == held == pool.num_used
