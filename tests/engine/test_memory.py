"""One budget: how pages are cut, what counts against it, and what is refused before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from paceline.config.engine import EngineSettings
from paceline.engine import loading
from paceline.engine.memory import KV_SHARE, ModelRole, allocate_kv, check_weights_fit
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import CapacityError
from paceline.llm import LLM
from paceline.models import kv_arena
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.kv_arena import KVArena, KVLayout, plan_pages
from paceline.models.native_decoder import NativeDecoder
from paceline.models.scripted import ScriptedModel
from paceline.records import SamplingParams, SpeculationParams
from tests.engine.scripted import always, drain, hashed_logits, make_engine, request, speculate
from tests.tiny_models import TinyModel

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


class Counted(ScriptedModel):
    """Keeps how many rows of logits each forward pass gave."""

    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        logits = super().forward(slices, kv)
        self.num_logits.append(len(logits))
        return logits


@settings_of_hypothesis(max_examples=40, deadline=None)
@given(st.integers(4, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_no_step_has_more_rows_of_logits_than_were_counted(rows: int, chunk: int, seed: int) -> None:
    """Prompts whose every row is scored, drafts and prompts that join: never more than the rows of a step."""
    rng = np.random.default_rng(seed)
    limits = SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=rows, prefill_chunk=chunk)
    engine = make_engine(hashed_logits(8), 8, {"scripted": always(*range(8))}, limits=limits)
    model = Counted(hashed_logits(8), 8)
    model.num_logits = []
    engine._model = model
    for i in range(8):
        scores = 1 if rng.random() < 0.6 else None
        params = SamplingParams(max_tokens=int(rng.integers(1, 20)), prompt_logprobs=scores, logprobs=scores)
        prompt = rng.integers(0, 8, int(rng.integers(1, 60))).tolist()
        engine.submit(request(prompt, params, speculate(int(rng.integers(0, 9))), request_id=f"r{i}"))
    drain(engine)
    assert model.rows
    assert max(model.num_logits) <= rows
    assert all(count <= most for count, most in zip(model.num_logits, model.rows, strict=True))


@pytest.mark.parametrize("num_seqs", [1, 4])
def test_log_probabilities_of_whole_prompts_fit_the_work_that_was_counted(
    num_seqs: int, tmp_path: Path
) -> None:
    """On native kernels, whose workspace can be looked at: as many scored rows at once as a step may have."""
    path = TinyModel(tensor_type="Q8_0").write(tmp_path / "tiny.gguf")
    given_settings = EngineSettings(
        target=str(path), drafter="suffix", max_num_seqs=4, max_num_batched_tokens=96, context_length=256,
        kv_memory=10**7,
    )  # fmt: skip
    with LLM.from_settings(given_settings) as llm:
        model = llm.loaded.engine._model
        assert isinstance(model, NativeDecoder)
        role = loading._target_role(given_settings, SimpleNamespace(model=model))
        planned = model.workspace_bytes_for(role.most_rows, role.most_logits, 256)
        params = SamplingParams(max_tokens=6, prompt_logprobs=20, logprobs=20)
        prompts = [[5 + i] * 200 for i in range(num_seqs)]
        on = SpeculationParams(drafter="suffix", draft_length=64)
        results = llm.generate(prompts, params, speculation=on)
        assert [len(r.prompt_logprobs or ()) for r in results] == [200] * num_seqs
        logits_bytes = 4 * 96 * model.vocab_size
        assert logits_bytes < model.workspace_bytes <= planned
