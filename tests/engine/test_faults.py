"""What fails inside a step: a drafter costs its drafts, the target its sequences, an observer nothing."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from paceline.clock import ManualClock
from paceline.drafters.interface import DraftProposal, DraftRequest
from paceline.drafters.scripted import ScriptedDrafter
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import GenerationError, StalledError, StepError
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.scripted import ScriptedModel
from paceline.records import FinishReason, GenerationResult, SamplingParams
from paceline.step_records import SequenceStep, StepRecord
from tests.engine.scripted import (
    OFF,
    draft_model,
    drain,
    hashed_logits,
    letters,
    make_engine,
    oracle,
    outcome,
    request,
    run,
    speculate,
)

V = 24
LOGITS = hashed_logits(V)
PARAMS = SamplingParams(max_tokens=20)


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.results: list[GenerationResult] = []

    def on_step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def on_finish(self, result: GenerationResult) -> None:
        self.results.append(result)

    def of(self, request_id: str) -> list[SequenceStep]:
        return [s for record in self.steps for s in record.sequences if s.request_id == request_id]


def plain(prompt: Sequence[int]) -> tuple[Any, ...]:
    return outcome(run(make_engine(LOGITS, V), request(prompt, PARAMS))[0])


def raises(asked: DraftRequest) -> list[int]:
    raise RuntimeError("out of ideas")


def wrong_type(asked: DraftRequest) -> Any:
    return DraftProposal(token_ids=("a",))  # type: ignore[arg-type]


@pytest.mark.parametrize("script", [raises, wrong_type])
def test_a_drafter_that_fails_costs_the_drafts_and_nothing_else(
    script: Callable[[DraftRequest], Any], caplog: pytest.LogCaptureFixture
) -> None:
    drafter = ScriptedDrafter(script)
    engine = make_engine(LOGITS, V, {"scripted": drafter})
    results = run(engine, *(request([i], PARAMS, speculate(3)) for i in range(3)))
    assert [outcome(r) for r in results] == [plain([i]) for i in range(3)]
    for result in results:
        assert result.speculation.num_drafted == 0
        assert "drafter scripted failed" in (result.speculation.fallback or "")
    # Once for all, once for each alone, and never again.
    assert len(drafter.requests) == 6
    assert engine.pool.num_used == 0
    assert "goes on without drafts" in caplog.text


def test_one_sequence_does_not_cost_the_others_their_drafts() -> None:
    good = oracle(LOGITS)

    def script(asked: DraftRequest) -> Any:
        return raises(asked) if asked.token_ids[0] == 1 else good.propose([asked])[0]

    engine = make_engine(LOGITS, V, {"scripted": ScriptedDrafter(script)})
    results = run(engine, *(request([i], PARAMS, speculate(3)) for i in range(3)))
    assert [outcome(r) for r in results] == [plain([i]) for i in range(3)]
    assert results[1].speculation.fallback == "drafter scripted failed: RuntimeError: out of ideas"
    for result in (results[0], results[2]):
        assert result.speculation.fallback is None
        assert result.speculation.acceptance_rate == 1.0


def test_a_drafter_may_fail_late_and_answer_too_little() -> None:
    class Short(ScriptedDrafter):
        def propose(self, requests: Sequence[DraftRequest]) -> list[DraftProposal]:
            return super().propose(requests)[: len(requests) - 1]

        def release(self, sequence_id: int) -> None:
            raise RuntimeError("cannot forget")

    engine = make_engine(LOGITS, V, {"scripted": Short(oracle(LOGITS)._script)})
    (result,) = run(engine, request([1], PARAMS, speculate(3)))
    assert outcome(result) == plain([1])
    assert "ValueError" in (result.speculation.fallback or "")


def test_a_draft_model_that_breaks_gives_its_blocks_back() -> None:
    class Breaking(ScriptedModel):
        def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
            if any(piece.start > 8 for piece in slices):
                raise RuntimeError("draft forward failed")
            return super().forward(slices, kv)

    drafter = draft_model(Breaking(LOGITS, V), num_blocks=8, block_size=4)
    engine = make_engine(LOGITS, V, {"model": drafter})
    results = run(engine, *(request([i], PARAMS, speculate(3, "model")) for i in range(2)))
    assert [outcome(r) for r in results] == [plain([i]) for i in range(2)]
    assert all(r.speculation.num_accepted > 0 and r.speculation.fallback for r in results)
    assert drafter.num_held_blocks == 0


class FailingModel(ScriptedModel):
    """A target whose forward pass number `at` fails."""

    def __init__(self, at: int) -> None:
        super().__init__(LOGITS, V)
        self.at = at

    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        if self.num_forwards == self.at:
            self.num_forwards += 1
            raise MemoryError("no room for the rows")
        return super().forward(slices, kv)


def test_a_target_that_fails_ends_those_of_its_step_and_no_others(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(LOGITS, V, {"scripted": oracle(LOGITS)}, limits=SchedulerLimits(max_num_seqs=2))
    engine._model = FailingModel(at=3)
    results = run(engine, *(request([i], PARAMS, speculate(2)) for i in range(4)))
    assert [r.finish_reason for r in results[:2]] == [FinishReason.ERROR] * 2
    for result in results[:2]:
        assert isinstance(result.error, StepError)
        assert isinstance(result.error.__cause__, MemoryError)
        assert "no room for the rows" in str(result.error)
        assert result.token_ids == plain([results.index(result)])[0][: len(result.token_ids)]
    assert [outcome(r) for r in results[2:]] == [plain([i]) for i in (2, 3)]
    assert engine.pool.num_used == 0
    assert "the target failed in a step of 2 sequences" in caplog.text


class Watched(ScriptedModel):
    """Remembers what it returned for as long as somebody else does."""

    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        logits = super().forward(slices, kv).numpy().copy()
        if self.num_forwards == 4:
            logits[:] = np.nan
        self.alive.append(weakref.ref(logits))
        return torch.from_numpy(logits)


def test_answers_that_failed_do_not_keep_what_their_step_computed() -> None:
    """A row of logits is half a megabyte for a large vocabulary, and callers may keep results for long."""
    engine = make_engine(LOGITS, V, {"scripted": oracle(LOGITS)})
    model = Watched(LOGITS, V)
    model.alive = []
    engine._model = model
    results = run(engine, *(request([i], PARAMS, speculate(2)) for i in range(3)))
    assert [type(r.error) for r in results] == [GenerationError] * 3
    engine.submit(request([1], PARAMS))
    engine._memory.store = None  # type: ignore[assignment]
    failed = [chunk.result for chunk in drain(engine)]
    assert [type(r.error) for r in failed if r is not None] == [StepError]
    gc.collect()
    assert not any(logits() is not None for logits in model.alive)


def test_a_token_that_cannot_be_taken_over_ends_one_answer() -> None:
    engine = make_engine(LOGITS, V)
    whole = plain([1])[0]
    others = [p for p in range(2, V) if whole[5] not in plain([p])[0]][:2]
    tokens = letters(V)

    def token_bytes(token_id: int) -> bytes:
        if token_id == whole[5]:
            raise KeyError(token_id)
        return tokens[token_id]

    engine._intake._vocabulary.token_bytes = token_bytes  # type: ignore[method-assign]
    bad, *good = run(engine, *(request([p], PARAMS) for p in (1, *others)))
    assert bad.finish_reason is FinishReason.ERROR
    assert isinstance(bad.error, StepError)
    assert [outcome(r) for r in good] == [plain([p]) for p in others]
    assert engine.pool.num_used == 0


def test_when_no_step_can_be_planned_every_request_ends_with_the_reason() -> None:
    engine = make_engine(LOGITS, V, limits=SchedulerLimits(max_num_seqs=1))
    for i in range(3):
        engine.submit(request([i], PARAMS, request_id=f"r{i}"))
    engine.step()
    engine.fail_all(RuntimeError("broken plan"))
    assert engine.pool.num_used == 0
    results = [c.result for c in drain(engine)]
    assert [type(r.error) for r in results if r is not None] == [StepError] * 3
    assert [outcome(r) for r in run(engine, request([1], PARAMS))] == [plain([1])]


def test_an_observer_that_raises_is_logged_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def on_step(self, record: StepRecord) -> None:
            raise ZeroDivisionError

        def on_finish(self, result: GenerationResult) -> None:
            raise ZeroDivisionError

    engine, recorder = make_engine(LOGITS, V), Recorder()
    engine.observers.add(Broken())
    engine.observers.add(recorder)
    with caplog.at_level(logging.ERROR):
        (result,) = run(engine, request([1], PARAMS))
    assert outcome(result) == plain([1])
    assert caplog.text.count("an observer failed") == 1
    assert [outcome(r) for r in recorder.results] == [outcome(result)]
    assert len(recorder.steps) == 20


def test_step_records_add_up_to_what_answers_say() -> None:
    """B43: over all steps, tokens sent are the usage; drafted and accepted are the statistics."""
    engine, recorder = make_engine(LOGITS, V, {"scripted": oracle(LOGITS, [2], V)}), Recorder()
    engine.observers.add(recorder)
    asked = [
        request([i] * (i + 1), SamplingParams(max_tokens=5 + i, stop=() if i % 2 else ("k",)), speculate(4))
        for i in range(12)
    ]
    results = run(engine, *asked)
    assert 0 < sum(r.finish_reason is FinishReason.STOP for r in results) < 12
    for result in results:
        steps = recorder.of(result.id)
        assert sum(s.num_sent_tokens for s in steps) == result.usage.completion_tokens
        assert sum(s.num_drafted for s in steps) == result.speculation.num_drafted
        assert sum(s.num_accepted for s in steps) == result.speculation.num_accepted
        assert sum(s.is_decoding for s in steps) == result.speculation.num_steps
        assert steps[0].num_context_tokens == 0
        assert steps[-1].finish_reason is result.finish_reason
        assert all(s.num_accepted <= s.num_drafted <= s.draft_length for s in steps)
        assert all(s.num_accepted <= s.num_new_tokens for s in steps)
    assert [sum(s.num_rows for s in r.sequences) for r in recorder.steps] == engine._model.rows
    assert [r.num_rows for r in recorder.steps] == engine._model.rows
    assert recorder.steps[-1].num_kv_blocks_used == 0
    assert (recorder.steps[-1].num_running, recorder.steps[-1].num_waiting) == (0, 0)


def test_times_of_a_step_are_read_from_the_engines_clock() -> None:
    clock = ManualClock()

    class Slow(ScriptedModel):
        def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
            clock.advance(2.0)
            return super().forward(slices, kv)

    def script(asked: DraftRequest) -> list[int]:
        clock.advance(0.5)
        return [1]

    engine, recorder = make_engine(LOGITS, V, {"scripted": ScriptedDrafter(script)}, clock=clock), Recorder()
    engine._model = Slow(LOGITS, V)
    engine.observers.add(recorder)
    run(engine, request([1], SamplingParams(max_tokens=5), speculate(2)))
    assert [r.verify_s for r in recorder.steps] == [2.0] * len(recorder.steps)
    assert [r.draft_s for r in recorder.steps][:2] == [0.0, 0.5]
    assert recorder.steps[1].duration_s == 2.5
    assert recorder.steps[1].began_at == 2.0


def test_a_sequence_without_progress_is_found() -> None:
    clock = ManualClock()
    engine = make_engine(LOGITS, V, limits=SchedulerLimits(max_num_seqs=1), clock=clock)
    for name in ("first", "second"):
        engine.submit(request([1], PARAMS, request_id=name))
    clock.advance(5.0)
    engine.step()
    assert [(s.request_id, s.since_s, s.is_waiting) for s in engine.stalled(4.0)] == [("second", 5.0, True)]
    clock.advance(4.0)
    assert [s.request_id for s in engine.stalled(4.0)] == ["first", "second"]
    error = StalledError("a stall of 4 s", "progress", "Try again")
    engine.fail("first", error)
    assert engine.pool.num_used == 0
    results = {c.request_id: c.result for c in drain(engine) if c.result is not None}
    assert results["first"].error is error
    assert outcome(results["second"]) == plain([1])


def test_off_is_never_told_a_fallback() -> None:
    engine = make_engine(LOGITS, V, {"scripted": ScriptedDrafter(raises)})
    (result,) = run(engine, request([1], PARAMS, OFF))
    assert result.speculation.fallback is None
