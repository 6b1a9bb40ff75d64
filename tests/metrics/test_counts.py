"""Counts add up to what requests had, whatever way they took."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.metrics.counts import MAX_POSITIONS, Counts
from paceline.metrics.histogram import Histogram
from paceline.records import FinishReason, GenerationResult, SpeculationStats, Timing, Usage
from paceline.step_records import SequenceStep, StepRecord


def part(**values: Any) -> SequenceStep:
    defaults: dict[str, Any] = {
        "request_id": "a", "index": 0, "route": "chat", "drafter": "model", "num_context_tokens": 5,
        "num_tokens": 1, "is_decoding": True, "draft_length": 0, "num_drafted": 0, "num_accepted": 0,
        "num_new_tokens": 1, "num_sent_tokens": 1,
    }  # fmt: skip
    return SequenceStep(**{**defaults, **values})


def step(began_at: float, *parts: SequenceStep) -> StepRecord:
    return StepRecord(
        number=0, began_at=began_at, plan_s=0.0, draft_s=0.25, verify_s=0.5, commit_s=0.25, sequences=parts,
        num_running=1, num_waiting=0, num_preemptions=0, num_kv_blocks=8, num_kv_blocks_used=1,
    )  # fmt: skip


def result(num_tokens: int, **values: Any) -> GenerationResult:
    defaults: dict[str, Any] = {
        "id": "a", "route": "chat", "text": "", "token_ids": (), "finish_reason": FinishReason.STOP,
        "usage": Usage(7, num_tokens), "speculation": SpeculationStats("model"),
        "timing": Timing(0.3, 2.0, 0.0, 0.0, 3), "seed": 0,
    }  # fmt: skip
    return GenerationResult(**{**defaults, **values})


def test_tokens_latencies_and_drafts_of_an_answer() -> None:
    counts = Counts(("chat",))
    counts.on_step(step(0.0, part(is_decoding=False, num_tokens=7)))
    counts.on_step(step(1.0, part(num_drafted=3, num_accepted=2, num_new_tokens=3, num_sent_tokens=3)))
    counts.on_step(step(2.0, part(num_drafted=1, num_new_tokens=1, num_sent_tokens=0)))
    counts.on_step(step(4.0, part(source="suffix", num_drafted=2, num_accepted=1, num_new_tokens=2,
                                  num_sent_tokens=3)))  # fmt: skip
    counts.on_finish(result(7))
    chat = counts.routes["chat"]
    assert (chat.num_output_tokens, chat.num_prompt_tokens, chat.num_verify_steps) == (7, 7, 3)
    assert {n: (d.num_drafted, d.num_accepted) for n, d in chat.drafts.items()} == {
        "model": (4, 2), "suffix": (2, 1),
    }  # fmt: skip
    assert chat.drafts["model"].drafted_at[:4] == [2, 1, 1, 0]
    assert chat.drafts["model"].accepted_at[:4] == [1, 1, 0, 0]
    # Three tokens a third of a second apart, then three a second apart.
    assert (chat.itl.count, chat.itl.sum) == (6, pytest.approx(1.0 + 3.0))
    assert (chat.ttft.sum, chat.duration.sum) == (0.3, 2.3)
    assert chat.num_answers == {"stop": 1}
    assert chat.acceptance_length == pytest.approx((3 * 0.99**2 + 1 * 0.99 + 2) / (0.99**2 + 0.99 + 1))
    assert (counts.num_steps, counts.step_s, counts.draft_s, counts.verify_s) == (4, 4.0, 1.0, 2.0)


def test_tokens_that_left_with_the_end_of_an_abandoned_answer_count_once() -> None:
    counts = Counts()
    counts.on_step(step(0.0, part(num_sent_tokens=2)))
    counts.on_finish(result(5, finish_reason=FinishReason.ABORT))
    assert counts.routes["chat"].num_output_tokens == 5
    counts.on_finish(result(3, id="b"))
    assert counts.routes["chat"].num_output_tokens == 8


def test_choices_share_one_prompt_and_are_kept_apart() -> None:
    counts = Counts()
    for index in range(3):
        counts.on_step(step(float(index), part(index=index)))
        counts.on_finish(result(1, index=index, route=None))
    assert counts.routes["none"].num_prompt_tokens == 7
    assert counts.routes["chat"].itl.count == 0


def test_positions_beyond_the_last_count_with_it() -> None:
    counts = Counts()
    counts.on_step(step(0.0, part(num_drafted=MAX_POSITIONS + 2, num_accepted=MAX_POSITIONS + 1)))
    drafts = counts.routes["chat"].drafts["model"]
    assert sum(drafts.drafted_at) == drafts.num_drafted
    assert sum(drafts.accepted_at) == drafts.num_accepted
    assert drafts.drafted_at[-1] == 3


def test_a_histogram_counts_up_to_and_including_its_bounds() -> None:
    histogram = Histogram((0.5, 1))
    for value in (0.2, 0.5, 0.7, 1.0, 3.0):
        histogram.add(value)
    histogram.add(0.1, 2)
    assert histogram.buckets() == [("0.5", 4.0), ("1.0", 6.0), ("+Inf", 7.0)]
    assert histogram.sum == pytest.approx(5.6)
