"""An engine over a scripted target, and the plain decoding to hold it against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from paceline.cache import BlockPool
from paceline.drafters.interface import Drafter, DraftRequest
from paceline.drafters.model import ModelDrafter
from paceline.drafters.scripted import ScriptedDrafter
from paceline.engine.engine import Engine
from paceline.engine.scheduler import SchedulerLimits
from paceline.models.interface import CausalModel
from paceline.models.kv_arena import KVArena, plan_pages
from paceline.models.kv_memory import KVMemory
from paceline.models.scripted import NextLogits, ScriptedModel, ScriptedVocabulary
from paceline.records import GenerationResult, Request, SamplingParams, SpeculationParams, StreamChunk

OFF = SpeculationParams(enabled=False)


def letters(vocab_size: int) -> list[bytes]:
    """A vocabulary of single letters: a, b, c, ..."""
    return [bytes([97 + i % 26]) for i in range(vocab_size)]


def hashed_logits(vocab_size: int, sharpness: float = 3.0) -> NextLogits:
    """A target whose every row depends on the whole history, so that any wrong history shows."""

    def next_logits(token_ids: Sequence[int]) -> np.ndarray:
        seed = hash(tuple(token_ids)) % 2**32
        return np.random.default_rng(seed).normal(size=vocab_size).astype(np.float32) * sharpness

    return next_logits


def spoiled(next_logits: NextLogits) -> NextLogits:
    """A draft model that is often right about a target, and often wrong."""

    def spoiled_logits(token_ids: Sequence[int]) -> np.ndarray:
        logits = np.asarray(next_logits(token_ids))
        return np.roll(logits, 1) if sum(token_ids) % 3 == 0 else logits

    return spoiled_logits


def make_engine(
    next_logits: NextLogits,
    vocab_size: int,
    drafters: Mapping[str, Drafter] | None = None,
    *,
    tokens: Sequence[bytes] | None = None,
    eos_ids: frozenset[int] = frozenset(),
    num_blocks: int = 64,
    block_size: int = 16,
    context_length: int | None = None,
    limits: SchedulerLimits | None = None,
    **more: Any,
) -> Engine:
    model = ScriptedModel(next_logits, vocab_size, context_length=20_000)
    vocabulary = ScriptedVocabulary(tokens or letters(vocab_size), eos_ids)
    return Engine(
        model,
        vocabulary,
        drafters or {},
        memory=KVMemory.of_its_own(model, num_blocks, block_size),
        context_length=context_length,
        limits=limits,
        **more,
    )


def shared_engine(
    next_logits: NextLogits,
    vocab_size: int,
    draft_logits: NextLogits | None = None,
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    drafters: Mapping[str, Drafter] | None = None,
    draft_options: Mapping[str, Any] | None = None,
    **more: Any,
) -> tuple[Engine, ModelDrafter]:
    """An engine whose draft model, with half the KV, has its blocks in the target's pages."""
    target = ScriptedModel(next_logits, vocab_size, kv_bytes_per_token=16)
    draft = ScriptedModel(draft_logits or next_logits, vocab_size, kv_bytes_per_token=8)
    plan = plan_pages([target.kv_layout, draft.kv_layout], block_size)
    arena, pool = KVArena(num_blocks, plan.page_bytes, torch.device("cpu")), BlockPool(num_blocks)
    memory, draft_memory = (
        KVMemory(model.kv_in(arena, size), pool, owner)
        for model, size, owner in zip((target, draft), plan.block_sizes, ("target", "draft"), strict=True)
    )
    drafter = ModelDrafter(draft, draft_memory, **(draft_options or {}))
    vocabulary = ScriptedVocabulary(letters(vocab_size))
    engine = Engine(target, vocabulary, {"model": drafter, **(drafters or {})}, memory=memory, **more)
    return engine, drafter


def check_pool(pool: BlockPool) -> None:
    """Every block is blank, cached or held, and only one of these; what is known can be found."""
    blank, cached = set(pool._blank), set(pool._cached)
    held = {block for block, count in enumerate(pool._references) if count}
    assert len(pool._blank) == len(blank)
    assert blank | cached | held == set(range(pool.num_blocks))
    assert len(blank) + len(cached) + len(held) == pool.num_blocks
    assert pool.num_used == len(held)
    assert {block: key for key, block in pool._block_of.items()} == pool._key_of
    assert cached <= set(pool._key_of)
    assert not blank & set(pool._key_of)


def request(
    prompt: Sequence[int],
    params: SamplingParams | None = None,
    speculation: SpeculationParams = OFF,
    *,
    seed: int | None = None,
    request_id: str = "r",
) -> Request:
    params = params or SamplingParams()
    chosen = seed if seed is not None else params.seed if params.seed is not None else 0
    return Request(request_id, tuple(prompt), params, speculation, chosen)


def speculate(draft_length: int, drafter: str = "scripted", **more: Any) -> SpeculationParams:
    return SpeculationParams(drafter=drafter, draft_length=draft_length, **more)


def drain(engine: Engine) -> list[StreamChunk]:
    chunks = []
    for _ in range(100_000):
        if not engine.has_work:
            return chunks
        chunks += engine.step()
    raise AssertionError("the engine does not come to an end")


def run(engine: Engine, *requests: Request) -> list[GenerationResult]:
    """Submit together, run to the end, and check that what was streamed is what was answered."""
    named = [replace(r, id=f"{r.id}{i}") for i, r in enumerate(requests)]
    for one in named:
        engine.submit(one)
    chunks = drain(engine)
    results = {c.request_id: c.result for c in chunks if c.result is not None}
    for one in named:
        own = [c for c in chunks if c.request_id == one.id]
        result = results[one.id]
        assert "".join(c.text for c in own) == result.text
        assert tuple(i for c in own for i in c.token_ids) == result.token_ids
        assert [c.is_last for c in own] == [False] * (len(own) - 1) + [True]
    return [results[one.id] for one in named]


def outcome(result: GenerationResult) -> tuple[Any, ...]:
    """What must be the same with speculation on and off."""
    return result.token_ids, result.text, result.finish_reason, result.usage


def oracle(next_logits: NextLogits, wrong_at: Sequence[int] = (), vocab_size: int = 0) -> ScriptedDrafter:
    """A drafter that proposes the target's own next tokens (greedy), wrong at the named offsets."""

    def script(asked: DraftRequest) -> list[int]:
        history, drafts = list(asked.token_ids), []
        for offset in range(asked.draft_length):
            best = int(np.argmax(next_logits(history)))
            history.append(best)
            drafts.append((best + 1) % vocab_size if offset in wrong_at else best)
        return drafts

    return ScriptedDrafter(script)


def draft_model(
    model: CausalModel, *, num_blocks: int = 64, block_size: int = 16, **more: Any
) -> ModelDrafter:
    """A draft model with blocks of its own."""
    return ModelDrafter(model, KVMemory.of_its_own(model, num_blocks, block_size), **more)


def always(*token_ids: int) -> ScriptedDrafter:
    """A drafter that proposes the same tokens whatever happened."""
    return ScriptedDrafter(lambda asked: list(token_ids)[: asked.draft_length])
