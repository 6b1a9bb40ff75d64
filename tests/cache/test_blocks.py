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


def filled(pool: BlockPool, token_ids: list[int], owner: str = "model") -> BlockTable:
    """A table whose full blocks can be found."""
    table = BlockTable(pool, 4, owner)
    assert table.reserve(len(token_ids))
    table.publish(token_ids, len(token_ids))
    return table


def test_what_was_computed_is_found_until_it_is_needed_for_something_else() -> None:
    pool = BlockPool(4)
    first = filled(pool, list(range(10)))
    ids = first.block_ids
    first.clear()
    assert (pool.num_free, pool.num_cached, pool.num_used) == (4, 2, 0)
    again = BlockTable(pool, 4, "model")
    assert again.match(list(range(9))) == 8
    assert again.block_ids == ids[:2]
    assert (pool.num_free, pool.num_cached) == (2, 0)
    again.clear()
    other = BlockTable(pool, 4, "model")
    assert other.reserve(12)  # the two blank ones, and the end of what is cached
    assert BlockTable(pool, 4, "model").match(list(range(9))) == 4


def test_a_prefix_is_found_up_to_the_first_difference_and_never_whole() -> None:
    pool = BlockPool(8)
    filled(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    for token_ids, num_known in (
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], 8),
        ([1, 2, 3, 4, 5, 6, 7, 8], 4),  # the last token is computed, or there would be no logits
        ([1, 2, 3, 4, 5, 6, 0, 8, 9], 4),
        ([0, 2, 3, 4, 5, 6, 7, 8, 9], 0),
        ([5, 6, 7, 8, 9], 0),  # the same tokens behind others are other content
    ):
        assert BlockTable(pool, 4, "model").match(token_ids) == num_known


def test_another_models_blocks_and_private_ones_are_not_found() -> None:
    pool = BlockPool(8)
    filled(pool, [1, 2, 3, 4, 5], "target")
    assert BlockTable(pool, 4, "draft").match([1, 2, 3, 4, 5]) == 0
    private = BlockTable(pool, 4)
    assert private.match([1, 2, 3, 4, 5]) == 0
    assert private.reserve(4)
    private.publish([1, 2, 3, 4], 4)
    private.clear()
    assert pool.num_cached == 0


def test_the_same_content_is_kept_once() -> None:
    pool = BlockPool(4)
    first, second = filled(pool, [1, 2, 3, 4]), filled(pool, [1, 2, 3, 4])
    assert first.block_ids == second.block_ids
    assert pool.num_used == 1
    first.clear()
    assert pool.num_used == 1
    second.clear()
    assert (pool.num_used, pool.num_cached) == (0, 1)


def test_one_owner_is_forgotten_and_who_holds_its_blocks_keeps_them() -> None:
    pool = BlockPool(6)
    held, gone = filled(pool, [1, 2, 3, 4], "draft"), filled(pool, [5, 6, 7, 8], "draft")
    filled(pool, [1, 2, 3, 4], "target").clear()
    gone.clear()
    pool.forget("draft")
    assert (pool.num_used, pool.num_cached) == (1, 1)
    assert BlockTable(pool, 4, "draft").match([1, 2, 3, 4, 5]) == 0
    held.clear()
    assert (pool.num_used, pool.num_cached) == (0, 1)
    pool.forget()
    assert (pool.num_free, pool.num_cached) == (6, 0)


def test_a_table_takes_over_what_others_computed_meanwhile() -> None:
    pool = BlockPool(8)
    late = BlockTable(pool, 4, "model")
    assert late.reserve(12)
    early = filled(pool, list(range(8)))
    assert late.match(list(range(12)), 2) == 2  # in the middle of a block
    assert late.match(list(range(12))) == 8
    assert late.block_ids[:2] == early.block_ids
    assert pool.num_used == 3


def test_the_most_blocks_in_use_are_remembered() -> None:
    pool = BlockPool(8)
    filled(pool, list(range(12))).clear()
    assert (pool.num_used, pool.peak_num_used) == (0, 3)
    pool.reset_peak()
    assert pool.peak_num_used == 0
    with pytest.raises(ValueError, match="has no content"):
        pool.publish(0, ("model", b""))
