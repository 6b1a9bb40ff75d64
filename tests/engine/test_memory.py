"""One budget: how pages are cut, what counts against it, and what is refused before anything is allocated."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.config.engine import EngineSettings
from paceline.engine.memory import KV_SHARE, ModelRole, allocate_kv, check_weights_fit
from paceline.errors import CapacityError
from paceline.models import kv_arena
from paceline.models.kv_arena import KVArena, KVLayout, plan_pages
from paceline.models.scripted import ScriptedModel

CPU = torch.device("cpu")
WORK = 4 * 8 * 512
"""Logits of 512 rows of 8 tokens."""


def roles(*kv_bytes: int) -> list[ModelRole]:
    names = ("target", "draft")
    return [
        ModelRole(name, ScriptedModel(lambda _: [0.0] * 8, 8, kv_bytes_per_token=size), 512, 512 * (i == 0))
        for i, (name, size) in enumerate(zip(names, kv_bytes, strict=False))
    ]


def settings(**more: object) -> EngineSettings:
    return EngineSettings(target="t", **more)


def test_the_default_pair_wastes_little() -> None:
    """Qwen2.5-Coder 1.5B and 0.5B, half precision: 28 layers of 2 heads of 128, and 24 of 2 heads of 64."""
    target, draft = KVLayout(2 * 2 * 28 * 2 * 128, 8192), KVLayout(2 * 2 * 24 * 2 * 64, 4096)
    plan = plan_pages([target, draft], 16)
    assert plan.block_sizes == (16, 32)
    assert plan.page_bytes == 16 * target.bytes_per_token == 458_752


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 60)), min_size=1, max_size=2),
    st.sampled_from([1, 4, 16, 32]),
)
def test_pages_hold_a_block_of_every_model_and_are_whole_units(
    models: list[tuple[int, int]], block_size: int
) -> None:
    layouts = [KVLayout(8 * units * layers, 8 * units) for units, layers in models]
    plan = plan_pages(layouts, block_size)
    for layout, size in zip(layouts, plan.block_sizes, strict=True):
        assert plan.page_bytes % layout.unit_bytes == 0
        assert size >= block_size
        assert size % block_size == 0
        assert size * layout.bytes_per_token <= plan.page_bytes
        assert (size + block_size) * layout.bytes_per_token > plan.page_bytes


def test_both_models_may_use_the_whole_budget() -> None:
    target, draft = allocate_kv(
        roles(16, 8), settings(kv_memory=20_000, block_size=4), 4096, CPU, lambda: 10**9
    )
    assert target.pool is draft.pool
    assert target.pool.num_blocks == 20_000 // (16 * 4)
    assert (target.block_size, draft.block_size) == (4, 8)
    assert target.store.entries.base is not None  # type: ignore[attr-defined]


def test_by_default_it_is_a_share_of_what_weights_and_work_leave_free() -> None:
    free = 1_000_000
    (target,) = allocate_kv(roles(16), settings(block_size=4), 10**6, CPU, lambda: free)
    assert target.pool.num_blocks == int((free - WORK) * KV_SHARE) // (16 * 4)


def test_no_more_than_all_sequences_can_fill_is_taken() -> None:
    target, _ = allocate_kv(
        roles(16, 8), settings(kv_memory=10**6, block_size=4, max_num_seqs=2), 64, CPU, lambda: 10**9
    )
    assert target.pool.num_blocks == 2 * (64 // 4 + 64 // 8)


@pytest.mark.parametrize(
    ("free", "more", "message"),
    [
        (100_000, {"kv_memory": 90_000}, r"kv_memory = 90,000 bytes, beside 16,384 .*100,000"),
        (WORK, {}, "0 bytes for the KV cache"),
        (10**9, {"kv_memory": 1000, "context_length": 64}, "1,000 bytes for the KV cache.*64 tokens"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_allocated(
    free: int, more: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B48: the draft model and the work of a step count too."""
    monkeypatch.setattr(kv_arena, "_allocate", lambda *_: pytest.fail("allocated"))
    with pytest.raises(CapacityError, match=message):
        allocate_kv(roles(16, 8), settings(block_size=4, **more), 4096, CPU, lambda: free)


def test_memory_that_the_system_refuses_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """B48: an allocator that fails."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kv_arena, "_allocate", fail)
    with pytest.raises(CapacityError, match=r"KV blocks of 64 bytes \(out of memory\).*kv-memory"):
        allocate_kv(roles(16, 8), settings(kv_memory=20_000, block_size=4), 4096, CPU, lambda: 10**9)


def test_weights_that_do_not_fit_are_refused_before_they_are_read() -> None:
    """B48: room for the target and a tenth more, and a draft model of a fifth: both sizes are said."""
    sizes = {"the target big": 1_000_000, "the draft small": 200_000}
    with pytest.raises(CapacityError, match=r"1,000,000 bytes .* the target big, 200,000 .*1,100,000"):
        check_weights_fit(sizes, lambda: 1_100_000)
    check_weights_fit(sizes, lambda: 1_200_000)


def test_pages_too_small_for_a_model_are_a_mistake() -> None:
    arena = KVArena(2, 64, CPU)
    arena.check(KVLayout(16, 8), 4)
    for layout, block_size in ((KVLayout(16, 8), 8), (KVLayout(12, 12), 4)):
        with pytest.raises(ValueError, match="pages of 64 bytes"):
            arena.check(layout, block_size)
