"""Structured output in the engine: the answer has its form, and drafts change nothing about it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.drafters.interface import DraftProposal, DraftRequest
from paceline.drafters.scripted import ScriptedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.engine import Engine
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import InvalidParameterError
from paceline.models.scripted import ScriptedModel
from paceline.parameters import StructuredOutput
from paceline.records import FinishReason, GenerationResult, SamplingParams, Verification
from paceline.sampling.distribution import Distribution
from paceline.sampling.processors import process
from tests.engine.scripted import (
    OFF,
    always,
    draft_model,
    hashed_logits,
    make_engine,
    outcome,
    request,
    run,
    speculate,
)

TOKENS = [*(bytes([byte]) for byte in range(256)), b'{"', b'":', b"12", b'"}', b"  ", b""]
V = len(TOKENS)
EOS, SPACES = V - 1, V - 2
LOGITS = hashed_logits(V)
PROMPT = [1, 2, 3]
DIGITS = StructuredOutput(regex="[0-9]{3}")
OBJECT = StructuredOutput(
    json_schema={
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9999}, "b": {"enum": ["x", "yy"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)
FREE = SamplingParams(max_tokens=30)


def engine(drafters: dict[str, Any] | None = None, **more: Any) -> Engine:
    return make_engine(LOGITS, V, drafters, tokens=TOKENS, eos_ids=frozenset({EOS}), **more)


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def text_drafter(text: str) -> ScriptedDrafter:
    """Proposes what follows in `text` after the output so far, whatever the target says."""
    tokens = bytes_of(text)

    def script(asked: DraftRequest) -> list[int]:
        done = len(asked.token_ids) - len(PROMPT)
        return tokens[done : done + asked.draft_length]

    return ScriptedDrafter(script)


def forms(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"a", "b"} and 0 <= value["a"] <= 9999 and value["b"] in ("x", "yy")


def test_a_draft_outside_the_grammar_never_reaches_the_target() -> None:
    """B22: "abc" for three digits; then valid, valid, invalid."""
    params = SamplingParams(structured_output=DIGITS)
    off = outcome(run(engine(), request(PROMPT, params))[0])
    text = off[1]
    assert re.fullmatch("[0-9]{3}", text)
    for drafts, most_rows in [("abc", 1), (text[:2] + "x", 2), ("9a9", 2)]:
        on_engine = engine({"scripted": text_drafter(drafts)})
        (on,) = run(on_engine, request(PROMPT, params, speculate(3)))
        assert outcome(on) == off
        assert max(on_engine._model.rows[1:]) <= most_rows


def test_thirty_answers_at_once_among_free_text() -> None:
    """B22: the free ones are what they are alone, and the engine goes on."""
    drafters = {"scripted": ScriptedDrafter(lambda asked: bytes_of("abc1")[: asked.draft_length])}
    limits = SchedulerLimits(max_num_seqs=40)
    many = engine(drafters, num_blocks=200, limits=limits)
    held = [request([i], SamplingParams(structured_output=DIGITS), speculate(4)) for i in range(30)]
    free = [request([i, 7], FREE, speculate(4)) for i in range(10)]
    mixed = [one for pair in zip(held[:10], free, strict=True) for one in pair] + held[10:]
    results = run(many, *mixed)
    alone = [outcome(run(engine(), replace(one, speculation=OFF))[0]) for one in mixed]
    assert [outcome(r) for r in results] == alone
    assert sum(bool(re.fullmatch("[0-9]{3}", r.text)) for r in results) >= 30
    assert many.pool.num_used == 0


def test_nothing_follows_a_complete_form() -> None:
    """B23: drafts run on behind the end of the schema; eight at once."""
    text = '{"a":1}'
    form = StructuredOutput(
        json_schema={
            "type": "object",
            "properties": {"a": {"const": 1}},
            "required": ["a"],
            "additionalProperties": False,
        }
    )
    params = SamplingParams(
        structured_output=form, logit_bias=dict.fromkeys([*bytes_of(" \n\t\r"), SPACES], -90.0)
    )
    drafters = {"scripted": text_drafter(text + "\n\nNext")}
    for k in (1, 2, 6, 9):
        results = run(engine(drafters), *[request(PROMPT, params, speculate(k), seed=s) for s in range(8)])
        for result in results:
            assert result.text == text
            assert result.finish_reason is FinishReason.STOP
            assert b"".join(TOKENS[i] for i in result.token_ids) == text.encode()
        off = run(engine(), request(PROMPT, params))[0]
        assert {outcome(r) for r in results} == {outcome(off)}


def all_drafters() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "model": draft_model(ScriptedModel(LOGITS, V), num_blocks=64, block_size=16),
        "suffix": SuffixDrafter(1),
        "random": ScriptedDrafter(lambda asked: rng.integers(0, V, asked.draft_length).tolist()),
    }


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
@pytest.mark.parametrize(
    "form",
    [
        OBJECT,
        StructuredOutput(json_object=True),
        StructuredOutput(regex="(ab|[0-9]+ )*END"),
        StructuredOutput(choice=("yes", "yesterday", "no")),
    ],
)
def test_same_tokens_with_any_drafter(form: StructuredOutput, temperature: float) -> None:
    params = SamplingParams(
        structured_output=form, temperature=temperature, max_tokens=40, frequency_penalty=0.2, logprobs=2
    )
    seeds = range(4)

    def answers(speculation, drafters) -> list[GenerationResult]:  # type: ignore[no-untyped-def]
        return run(engine(drafters), *[request(PROMPT, params, speculation, seed=s) for s in seeds])

    off = answers(OFF, None)
    for drafter in ("model", "suffix", "random"):
        for k in (1, 5):
            on = answers(speculate(k, drafter), all_drafters())
            assert [outcome(r) for r in on] == [outcome(r) for r in off]
            assert [r.logprobs for r in on] == [r.logprobs for r in off]
            if drafter == "model":
                # The same model under the same masks and the same noise is always right.
                assert all(r.speculation.num_accepted == r.speculation.num_drafted for r in on)
                assert all(r.speculation.num_accepted for r in on if len(r.token_ids) > 3)
    for result in off:
        if result.finish_reason is FinishReason.STOP and form is OBJECT:
            assert forms(result.text)
        if result.finish_reason is FinishReason.STOP and form.choice:
            assert result.text in form.choice


def test_preempted_answers_keep_their_place_in_the_grammar() -> None:
    params = SamplingParams(structured_output=OBJECT, max_tokens=60, temperature=1.0)
    asked = [request([i, i], params, speculate(3, "model"), seed=i) for i in range(6)]
    tight = engine(all_drafters(), num_blocks=12, block_size=4, context_length=48)
    results = run(tight, *asked)
    assert tight.num_preemptions > 0
    roomy = [run(engine(context_length=48), replace(one, speculation=OFF))[0] for one in asked]
    assert [outcome(r) for r in results] == [outcome(r) for r in roomy]


def test_an_answer_that_is_cut_off_is_a_beginning_of_its_form() -> None:
    params = SamplingParams(structured_output=OBJECT, max_tokens=5, temperature=1.0)
    (result,) = run(engine(), request(PROMPT, params, seed=3))
    assert result.finish_reason is FinishReason.LENGTH
    assert result.usage.completion_tokens == 5


def test_a_stop_string_and_a_form_may_be_had_together() -> None:
    params = SamplingParams(structured_output=StructuredOutput(regex="[0-9]{3}-x"), stop="-")
    for speculation in (OFF, speculate(4, "model")):
        (result,) = run(engine(all_drafters()), request(PROMPT, params, speculation))
        assert re.fullmatch("[0-9]{3}", result.text)
        assert result.usage.completion_tokens == len(result.token_ids)


@pytest.mark.parametrize("more", [{"ignore_eos": True}, {"min_tokens": 50}])
def test_a_complete_form_ends_the_answer_whatever_else_was_asked(more: dict[str, Any]) -> None:
    params = SamplingParams(structured_output=DIGITS, **more)
    for speculation in (OFF, speculate(4, "random")):
        (result,) = run(engine(all_drafters()), request(PROMPT, params, speculation))
        assert re.fullmatch("[0-9]{3}", result.text)
        assert result.finish_reason is FinishReason.STOP


def test_an_end_token_comes_only_when_the_form_may_end() -> None:
    form = StructuredOutput(regex="[0-9]{2,}")
    params = SamplingParams(structured_output=form, logit_bias={EOS: 100.0}, max_tokens=9)
    for speculation in (OFF, speculate(4, "random")):
        (result,) = run(engine(all_drafters()), request(PROMPT, params, speculation))
        assert result.token_ids[-1] == EOS
        assert re.fullmatch("[0-9]{2}|12[0-9]?|[0-9]12", result.text)


def test_a_bad_form_is_refused_and_nothing_is_queued() -> None:
    one = engine()
    with pytest.raises(InvalidParameterError, match="unclosed"):
        one.submit(request(PROMPT, SamplingParams(structured_output=StructuredOutput(regex="[0-9"))))
    assert not one.has_work


ROW = np.full(V, -40.0, dtype=np.float32)
ROW[ord("1")], ROW[ord("2")], ROW[ord("3")], ROW[ord("x")] = np.log([0.1, 0.3, 0.2, 0.4])
MASKED = {"1": 1 / 6, "2": 3 / 6, "3": 2 / 6}
"""What is left of the row where only digits may come."""


@pytest.mark.parametrize("knows_the_mask", [True, False])
def test_rejection_keeps_the_masked_distribution(knows_the_mask: bool) -> None:
    """Drafts that were sampled, from a distribution with or without the mask: no trimming may bend p.

    Chance of failing where all is right: p below 1e-4 in a chi-square test, seeded.
    """
    rng = np.random.default_rng(11)
    draft_row = np.full(V, -40.0, dtype=np.float32)
    draft_row[[ord("1"), ord("2"), ord("x")]] = np.log([0.5, 0.2, 0.3])

    def script(asked: DraftRequest) -> DraftProposal:
        ids: list[int] = []
        sampled_from: list[Distribution] = []
        for _ in range(asked.draft_length):
            if knows_the_mask:
                q = process(draft_row, asked.sampling, ids)
            else:
                q = Distribution(np.array([49, 50, 120]), np.log([0.5, 0.2, 0.3]))
            ids.append(int(rng.choice(q.token_ids, p=q.probs / q.probs.sum())))
            sampled_from.append(q)
            if ids[-1] == ord("x"):
                break
        return DraftProposal(tuple(ids), (), tuple(sampled_from))

    counts = dict.fromkeys(MASKED, 0)
    one = make_engine(lambda _: ROW, V, {"scripted": ScriptedDrafter(script)}, tokens=TOKENS, num_blocks=400)
    params = SamplingParams(
        structured_output=StructuredOutput(regex="[1-3]+"), temperature=1.0, max_tokens=3000
    )
    speculation = speculate(3, verification=Verification.REJECTION)
    (result,) = run(one, request(PROMPT, params, speculation, seed=5))
    for character in result.text:
        counts[character] += 1
    expected = [3000 * p for p in MASKED.values()]
    statistic = sum((n - e) ** 2 / e for n, e in zip(counts.values(), expected, strict=True))
    assert statistic < 18.4  # chi-square, 2 degrees of freedom, p = 1e-4
    assert 0 < result.speculation.num_accepted < result.speculation.num_drafted


def test_always_wrong_drafts_cost_no_more_than_their_rows() -> None:
    params = SamplingParams(structured_output=OBJECT, max_tokens=40)
    (off,) = run(engine(), request(PROMPT, params))
    (on,) = run(engine({"scripted": always(*bytes_of("zzzz"))}), request(PROMPT, params, speculate(4)))
    assert outcome(on) == outcome(off)
