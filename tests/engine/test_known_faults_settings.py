"""Faults that other engines had in what was asked for: dead flags, an off that costs, budgets that lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.clock import ManualClock
from paceline.config.engine import EngineSettings
from paceline.engine import loading
from paceline.engine.engine import Engine
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import CapacityError
from paceline.llm import LLM
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.scripted import ScriptedModel
from paceline.parameters import StructuredOutput
from paceline.records import FinishReason, SamplingParams, SpeculationParams, Verification
from tests.engine.scripted import (
    OFF,
    always,
    drain,
    hashed_logits,
    make_engine,
    oracle,
    outcome,
    request,
    run,
    shared_engine,
    speculate,
)
from tests.engine.test_faults import Recorder
from tests.tiny_models import TinyModel

V = 24
LOGITS = hashed_logits(V)


class Costed(ScriptedModel):
    """A target whose forward pass takes 10 ms, and 1 ms for each row."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(LOGITS, V)
        self._clock = clock

    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> Any:
        self._clock.advance(0.01 + 0.001 * sum(len(piece.token_ids) for piece in slices))
        return super().forward(slices, kv)


def seconds(concurrency: int, speculation: SpeculationParams) -> tuple[float, list[int], int]:
    """So many streams, and prompts that join: the time, the rows, and how often a drafter was asked."""
    clock, drafter = ManualClock(), always(1, 2, 3)
    engine = make_engine(LOGITS, V, {"scripted": drafter}, clock=clock, num_blocks=400)
    engine._model = Costed(clock)
    for i in range(concurrency):
        engine.submit(request([i, i], SamplingParams(max_tokens=40), speculation, request_id=f"s{i}"))
    for step in range(36):
        if step % 3 == 0:
            joining = request(
                [step % V] * 9, SamplingParams(max_tokens=1), speculation, request_id=f"p{step}"
            )
            engine.submit(joining)
        engine.step()
        for sequence in engine._scheduler:
            assert len(sequence.table.block_ids) <= len(sequence.token_ids) // 16 + 1
    drain(engine)
    return clock(), engine._model.rows, len(drafter.requests)


@pytest.mark.parametrize("concurrency", range(1, 9))
def test_at_k_0_every_step_is_that_of_plain_decoding(concurrency: int) -> None:
    """B39: at any batch, with prompts that join: the same rows in the same time, and no drafter is asked."""
    off = seconds(concurrency, OFF)
    assert seconds(concurrency, speculate(0)) == off
    assert off[2] == 0


def _watched(settings: EngineSettings, **request_options: Any) -> tuple[Any, Recorder]:
    with LLM.from_settings(settings) as llm:
        recorder = Recorder()
        llm.loaded.engine.observers.add(recorder)
        llm.submit([5, 6, 7] * 6, SamplingParams(max_tokens=24, ignore_eos=True), **request_options)
        (result,) = [chunk.result for chunk in llm.run() if chunk.result is not None]
    return result, recorder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(TinyModel(tensor_type="Q8_0").write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.mark.parametrize("drafter", ["model", "suffix", "mixed"])
@pytest.mark.parametrize("k", [1, 3])
def test_settings_given_are_settings_used(tiny: str, drafter: str, k: int) -> None:
    """B42: drafter and draft length reach the step of a request that says nothing of its own."""
    settings = EngineSettings(
        target=tiny, draft=tiny, drafter=drafter, draft_length=k, kv_memory="16MiB", context_length=128
    )
    result, recorder = _watched(settings, route="chat")
    assert settings.speculation_params == SpeculationParams(drafter=drafter, draft_length=k)
    decoding = [s for record in recorder.steps for s in record.sequences if s.is_decoding]
    assert {(s.drafter, s.route) for s in decoding} == {(drafter, "chat")}
    assert max(s.draft_length for s in decoding) == k
    if drafter == "model":
        assert result.speculation.num_drafted > 0
        assert max(s.num_drafted for s in decoding) == k


def test_off_is_off_and_on_is_on_for_each_request(tiny: str) -> None:
    """B42: whatever the engine's default, a request has the last word; off drafts nothing."""
    on = SpeculationParams(drafter="model", draft_length=2)
    for default in (True, False):
        settings = EngineSettings(
            target=tiny, draft=tiny, speculation=default, kv_memory="16MiB", context_length=128
        )
        for speculation, drafts in ((None, default), (OFF, False), (on, True)):
            result, recorder = _watched(settings, speculation=speculation)
            assert (result.speculation.num_drafted > 0) is drafts
            assert (max(s.draft_length for r in recorder.steps for s in r.sequences) > 0) is drafts
            assert result.speculation.fallback is None


PARAMETERS = [
    {"logprobs": 3},
    {"prompt_logprobs": 2},
    {"frequency_penalty": 0.7, "presence_penalty": -0.5, "repetition_penalty": 1.3},
    {"logit_bias": {3: 2.0}},
    {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.05},
    {"min_tokens": 8, "stop_token_ids": (2,)},
    {"stop": ("zz",)},
    {"structured_output": StructuredOutput(regex="[a-x]{40}")},
]


@pytest.mark.parametrize("params", PARAMETERS, ids=lambda params: next(iter(params)))
@pytest.mark.parametrize("verification", list(Verification))
def test_no_parameter_quietly_ends_drafting(params: dict[str, Any], verification: Verification) -> None:
    """B42: asking for log-probabilities, or for anything else, leaves drafts what they are."""
    engine = make_engine(LOGITS, V, {"scripted": oracle(LOGITS)})
    asked = request([1, 2], SamplingParams(max_tokens=20, **params), speculate(3, verification=verification))
    (result,) = run(engine, asked)
    assert result.speculation.num_drafted >= 8
    assert result.speculation.fallback is None


def test_unloaded_weights_are_named_as_the_reason() -> None:
    """B42: who asked for drafts and had none is told why; who did not ask is told nothing."""
    engine, _ = shared_engine(LOGITS, V, draft_options={"reload": lambda: ScriptedModel(LOGITS, V)})
    engine.unload_drafter("model")
    params = SamplingParams(max_tokens=6)
    asked = [request([i], params, speculation) for i, speculation in enumerate((speculate(3, "model"), OFF))]
    on, off = run(engine, *asked, request([7], params, speculate(0, "model")))[:2]
    assert on.speculation.num_drafted == 0
    assert on.speculation.fallback == "the weights of drafter model were unloaded"
    assert off.speculation.fallback is None


@pytest.mark.parametrize("drafter", ["model", "mixed"])
def test_the_draft_model_is_in_the_budget_whichever_drafter_uses_it(
    drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B48: room for the target and a tenth more, and a draft model of a fifth: refused before it is read."""
    target = TinyModel(num_layers=5).write(tmp_path / "target.gguf")
    draft = TinyModel(num_layers=1).write(tmp_path / "draft.gguf")
    size, room = loading.weight_bytes(target), 0.1
    assert loading.weight_bytes(draft) > room * size
    monkeypatch.setattr(loading, "free_memory", lambda _: int((1 + room) * size))
    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(CapacityError, match=rf"{size:,} bytes .* {loading.weight_bytes(draft):,} bytes"):
        loading.load_engine(EngineSettings(target=str(target), draft=str(draft), drafter=drafter))


def test_a_draft_model_that_is_not_loaded_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B48: the other side: what is not used is not counted."""
    path = str(TinyModel().write(tmp_path / "target.gguf"))
    sizes: list[dict[str, int]] = []
    monkeypatch.setattr(loading, "check_weights_fit", lambda found, _: sizes.append(found))
    loading._check_memory(
        EngineSettings(target=path, draft=path, drafter="suffix"), loading.pick_device("cpu")
    )
    assert list(sizes[0]) == [f"the target {path}"]


def _queued(engine: Engine) -> None:
    engine.submit(request([9], SamplingParams(max_tokens=50), request_id="first"))
    engine.step()


def _in_prefill(engine: Engine) -> None:
    engine.step()


def _decoding(engine: Engine) -> None:
    for _ in range(8):
        engine.step()


@pytest.mark.parametrize("is_reported", [True, False])
@pytest.mark.parametrize("until", [_queued, _in_prefill, _decoding])
def test_who_leaves_is_counted_once_and_costs_nothing_more(
    until: Callable[[Engine], None], is_reported: bool
) -> None:
    """B37: observers hear of every answer that ended, also of one that nobody waits for any more."""
    limits = SchedulerLimits(max_num_seqs=1, prefill_chunk=4)
    engine, recorder = make_engine(LOGITS, V, limits=limits), Recorder()
    engine.observers.add(recorder)
    gone = request([1] * 20, SamplingParams(max_tokens=50, n=2), request_id="gone")
    if until is _queued:
        until(engine)
        engine.submit(gone)
    else:
        engine.submit(gone)
        until(engine)
    num_rows = len(recorder.of("gone"))
    assert engine.abort("gone", is_reported=is_reported)
    assert engine.pool.num_used == (1 if until is _queued else 0)
    chunks = drain(engine)
    assert any(chunk.request_id == "gone" for chunk in chunks) is is_reported
    ended = [r for r in recorder.results if r.id == "gone"]
    assert [(r.finish_reason, r.index) for r in ended] == [(FinishReason.ABORT, 0), (FinishReason.ABORT, 1)]
    assert len(recorder.of("gone")) == num_rows
    assert not engine.abort("gone", is_reported=is_reported)
    assert engine.pool.num_used == 0


def test_the_last_chunk_alone_has_the_usage_streamed_or_not() -> None:
    """B29: an answer that is whole in one step, or in several: one usage, at the end, and the same."""
    for max_tokens in (1, 2, 9):
        asked = request([1, 2], SamplingParams(max_tokens=max_tokens))
        (whole,) = run(make_engine(LOGITS, V), asked)
        for k in range(5):
            engine = make_engine(LOGITS, V, {"scripted": oracle(LOGITS)})
            engine.submit(replace(asked, speculation=speculate(k)))
            chunks = drain(engine)
            results = [chunk.result for chunk in chunks if chunk.result is not None]
            assert len(results) == 1
            assert chunks[-1].result is results[0]
            assert outcome(results[0]) == outcome(whole)
            assert results[0].usage.completion_tokens == sum(len(chunk.token_ids) for chunk in chunks)
            assert len(chunks) == -(-(max_tokens - 1) // (k + 1)) + 1
