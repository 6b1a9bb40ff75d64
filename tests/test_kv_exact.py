"""Whatever happens to the KV, an answer is that of plain decoding alone, to the last bit of its log-probs:
prefix hits, chunk borders, forced preemption, unloading of the draft model.

Tiny random models of two kernels run all of it; a real one a part.
"""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.drafters.model import ModelDrafter
from paceline.models.native_decoder import NativeDecoder
from paceline.records import GenerationResult
from tests.tiny_models import TinyModel

OFF = SpeculationParams(enabled=False)
PARAMS = SamplingParams(max_tokens=36, ignore_eos=True, temperature=0.9, seed=3, logprobs=2)
TEXT = "the def return in er on to he th an re de the ret urn return to the def in the re on an he "
CONTEXT = 160
Prompts = Sequence[tuple[int, ...]]
Plain = Callable[[Prompts], list[tuple[object, ...]]]


@dataclass(frozen=True)
class Pair:
    """A target with a draft model that is right about some tokens, and prompts for them."""

    target: str
    draft: str
    kernels: str
    prompts: tuple[tuple[int, ...], ...]

    def load(self, **settings: Any) -> LLM:
        return LLM(
            self.target,
            self.draft,
            kernels=self.kernels,
            **{"context_length": CONTEXT, "kv_memory": "64MiB"} | settings,
        )

    def block_bytes(self) -> int:
        with self.load() as llm:
            return llm.loaded.engine._memory.store.block_size * llm.loaded.engine._model.kv_bytes_per_token()


def same(result: GenerationResult) -> tuple[object, ...]:
    return result.token_ids, result.text, result.finish_reason, result.usage, result.logprobs


def cut(llm: LLM) -> tuple[tuple[int, ...], ...]:
    """Prompts of 5 to 100 tokens; three begin alike."""
    ids = tuple(llm.encode(TEXT * 3))
    shared = ids[:50]
    return ids[:5], ids[3:100], (*shared, ids[7]), (*shared, ids[8], ids[1]), shared, ids[11:60]


@pytest.fixture(scope="module", params=["native", "reference"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    tensor_type = {"native": "Q4_1", "reference": "F32"}[request.param]
    folder = tmp_path_factory.mktemp("tiny")
    target = TinyModel("qwen2", tensor_type=tensor_type).write(folder / "target.gguf")
    draft = TinyModel("qwen2", num_layers=1, tensor_type=tensor_type).write(folder / "draft.gguf")
    with LLM(str(target), kernels=request.param, context_length=CONTEXT, kv_memory="64MiB") as llm:
        prompts = cut(llm)
    return Pair(str(target), str(draft), request.param, prompts)


@pytest.fixture(scope="module")
def plain(tiny: Pair) -> Iterator[Plain]:
    """Answers of an engine that never shares, chunks, drafts or runs out of blocks."""
    with LLM(tiny.target, kernels=tiny.kernels, context_length=CONTEXT, kv_memory="64MiB") as llm:

        @functools.cache
        def answer(prompt: tuple[int, ...]) -> tuple[object, ...]:
            llm.loaded.engine.clear_prefix_cache()
            return same(llm.generate(prompt, PARAMS)[0])

        yield lambda prompts: [answer(prompt) for prompt in prompts]


@pytest.fixture(scope="module")
def llm(tiny: Pair) -> Iterator[LLM]:
    with tiny.load() as llm:
        yield llm


@pytest.mark.parametrize("speculation", [OFF, SpeculationParams(drafter="model", draft_length=5)])
def test_prefix_hits(tiny: Pair, llm: LLM, plain: Plain, speculation: SpeculationParams) -> None:
    llm.loaded.engine.clear_prefix_cache()
    hits = []
    for _ in range(2):
        for prompt, expected in zip(tiny.prompts, plain(tiny.prompts), strict=True):
            (result,) = llm.generate(prompt, PARAMS, speculation=speculation)
            assert same(result) == expected
            hits.append(result.num_cached_tokens)
    assert hits == [0, 0, 0, 48, 48, 0, *(0, 96, 48, 48, 48, 48)]
    assert llm.loaded.engine.pool.num_used == 0


@pytest.mark.parametrize("chunk", [7, 16, 33])
def test_chunk_borders(tiny: Pair, plain: Plain, chunk: int) -> None:
    """Some prompts join while others decode; some find what others computed."""
    with tiny.load(prefill_chunk=chunk, max_num_batched_tokens=40, mixed_prefill_ratio=0.7) as llm:
        results = llm.generate(tiny.prompts, PARAMS)
        assert [same(r) for r in results] == plain(tiny.prompts)
        assert sum(r.speculation.num_accepted for r in results) > 0


def test_forced_preemption(tiny: Pair, plain: Plain) -> None:
    """Ten blocks for six sequences that come to three each, drafts not counted."""
    prompts = [tiny.prompts[1][i : 2 * i + 6] for i in range(6)]
    with tiny.load(kv_memory=10 * tiny.block_bytes()) as llm:
        engine = llm.loaded.engine
        assert engine.pool.num_blocks == 10
        results = llm.generate(prompts, PARAMS)
        assert [same(r) for r in results] == plain(prompts)
        assert engine.num_preemptions > 0
        assert engine.pool.num_used == 0


def test_unloading_the_draft_model(tiny: Pair, llm: LLM, plain: Plain) -> None:
    engine = llm.loaded.engine
    engine.clear_prefix_cache()
    numbered = {llm.submit(p, PARAMS): i for i, p in enumerate(tiny.prompts)}
    results: dict[int, GenerationResult] = {}
    step = 0
    while engine.has_work:
        if step == 6:
            drafter = engine.drafters["model"]
            assert isinstance(drafter, ModelDrafter)
            model = weakref.ref(drafter._model)
            engine.unload_drafter("model")
            gc.collect()
            assert model() is None  # nothing else holds the weights
        if step == 14:
            engine.load_drafter("model")
        done = {numbered[c.request_id]: c.result for c in engine.step() if c.result is not None}
        results |= done
        step += 1
    llm._inbox.clear()
    assert [same(results[i]) for i in range(len(tiny.prompts))] == plain(tiny.prompts)
    assert sum(r.speculation.num_accepted for r in results.values()) > 0


def anonymous_bytes() -> int:
    """What this process holds beside mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


@pytest.mark.models
def test_the_memory_of_unloaded_weights_is_the_systems_again(preset_path: Callable[[str], Path]) -> None:
    """Not the allocator's: what a draft model took is there for others, and once more after a second time."""
    path = str(preset_path("smollm2-135m-instruct"))
    with LLM(path, path, context_length=128, kv_memory="16MiB") as llm:
        engine = llm.loaded.engine
        drafter = engine.drafters["model"]
        assert isinstance(drafter, ModelDrafter)
        assert isinstance(drafter._model, NativeDecoder)
        size = drafter._model.weight_bytes
        for _ in range(2):
            before = anonymous_bytes()
            engine.unload_drafter("model")
            assert before - anonymous_bytes() > 0.8 * size
            engine.load_drafter("model")


@pytest.mark.models
def test_a_real_model(preset_path: Callable[[str], Path]) -> None:
    """All of it at once on SmolLM2, drafted for by itself: few blocks, small chunks, a shared beginning."""
    path = str(preset_path("smollm2-135m-instruct"))
    text = "Write a function that adds two numbers, then say in one sentence what it does. "
    sampling = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.7, seed=5, logprobs=1)
    with LLM(path, context_length=128, kv_memory="64MiB") as llm:
        ids = llm.encode(text * 4)
        prompts = [ids[:6], [*ids[:32], ids[5]], [*ids[:32], ids[9]], ids[2:9], ids[4:12], ids[7:20]]
        expected = []
        for prompt in prompts:
            llm.loaded.engine.clear_prefix_cache()
            expected.append(same(llm.generate(prompt, sampling)[0]))
        block_bytes = 16 * llm.loaded.engine._model.kv_bytes_per_token()
    with LLM(path, path, context_length=128, kv_memory=8 * block_bytes, prefill_chunk=13) as llm:
        engine = llm.loaded.engine
        results = llm.generate(prompts, sampling)
        assert [same(r) for r in results] == expected
        assert engine.num_preemptions > 0
        hits_before = engine.kv_stats().num_prefix_hits
        for _ in range(2):
            assert [same(r) for r in llm.generate(prompts[:2], sampling)] == expected[:2]
        assert engine.kv_stats().num_prefix_hits > hits_before
        # Gone and back again while requests run, and gone for good.
        numbered = {llm.submit(prompt, sampling): i for i, prompt in enumerate(prompts)}
        changed = {}
        for step in itertools.count():
            if step in (12, 20):
                (engine.unload_drafter if step == 12 else engine.load_drafter)("model")
            changed |= {numbered[c.request_id]: same(c.result) for c in engine.step() if c.result is not None}
            if not engine.has_work:
                break
        llm._inbox.clear()
        assert step > 20
        assert [changed[i] for i in range(len(prompts))] == expected
        engine.unload_drafter("model")
        again = llm.generate(prompts, sampling)
        assert [same(r) for r in again] == expected
        assert not any(r.speculation.num_drafted for r in again)
        engine.load_drafter("model")
        (drafted,) = llm.generate(prompts[0], sampling)
        assert same(drafted) == expected[0]
        assert drafted.speculation.num_accepted > 0
        assert engine.kv_stats().num_prefix_hits > 0
        assert engine.pool.num_used == 0
