"""Faults that other engines had, each with a small probe: the output must be that of plain decoding.

The target reads its history back from the paged cache, so a wrong cache shows as a wrong answer.
"""

from __future__ import annotations

import numpy as np
import pytest

from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.scripted import ScriptedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.models.scripted import table_logits
from paceline.records import FinishReason, SamplingParams
from tests.engine.scripted import (
    OFF,
    always,
    hashed_logits,
    make_engine,
    oracle,
    outcome,
    request,
    run,
    speculate,
)

V = 24


def test_greedy_with_ngram_drafts_on_repetitive_prompts() -> None:
    """B1: one word repeated, `abab...`, `aab aab...`, and no repeats at all."""
    logits = hashed_logits(V)
    prompts = [[7] * 48, [1, 2] * 24, [1, 1, 2, 9] * 12, list(range(20))]
    params = SamplingParams(max_tokens=32)
    for prompt in prompts:
        expected = run(make_engine(logits, V), request(prompt, params))
        engine = make_engine(logits, V, {"suffix": SuffixDrafter()})
        assert [outcome(r) for r in expected] == [
            outcome(r) for r in run(engine, request(prompt, params, speculate(4, "suffix")))
        ]


def test_ngram_drafts_do_come_on_a_repetitive_text() -> None:
    """B1, the other half: a probe in which nothing is drafted would show nothing."""
    logits = table_logits({1: 2, 2: 3, 3: 1}, V)
    engine = make_engine(logits, V, {"suffix": SuffixDrafter()})
    (result,) = run(engine, request([1, 2, 3] * 5, SamplingParams(max_tokens=31), speculate(4, "suffix")))
    assert result.token_ids == tuple([1, 2, 3] * 10 + [1])
    assert result.speculation.acceptance_rate == 1.0
    assert result.speculation.num_steps == 6


@pytest.mark.parametrize("prompt_length", [14, 15, 16, 17, 18])
@pytest.mark.parametrize("k", range(1, 21))
def test_long_drafts_cross_block_borders(k: int, prompt_length: int) -> None:
    """B3: drafts longer than a block, from a drafter that is always right and one that never is."""
    logits = hashed_logits(V)
    prompt = [i % V for i in range(prompt_length)]
    params = SamplingParams(max_tokens=45)
    expected = outcome(run(make_engine(logits, V), request(prompt, params))[0])
    for drafter in (oracle(logits), oracle(logits, range(k), V)):
        engine = make_engine(logits, V, {"scripted": drafter}, num_blocks=8)
        assert outcome(run(engine, request(prompt, params, speculate(k)))[0]) == expected
        assert engine.pool.num_free == engine.pool.num_blocks


@pytest.mark.parametrize("k", [1, 2, 4])
def test_no_token_is_dropped_when_a_draft_falls(k: int) -> None:
    """B5: a sure cycle A B C under temperature 1, with a drafter that is wrong at random."""
    rng = np.random.default_rng(5)
    drafter = ScriptedDrafter(lambda asked: rng.integers(0, V, asked.draft_length).tolist())
    engine = make_engine(table_logits({0: 1, 1: 2, 2: 0}, V), V, {"scripted": drafter})
    params = SamplingParams(temperature=1.0, max_tokens=300)
    (result,) = run(engine, request([2], params, speculate(k)))
    assert result.token_ids == tuple([0, 1, 2] * 100)


@pytest.mark.parametrize("index", range(5))
def test_end_token_inside_an_accepted_block(index: int) -> None:
    """B8, B43: the end token at each place of a block of four drafts and a bonus."""
    chain = [10, 11, 12, 13, 14, 15, 16]  # 10 is the prefill's own sample, the block is 11 .. 15
    logits = table_logits(dict(zip([1, *chain], chain, strict=False)), V)
    eos = frozenset({chain[1 + index]})
    params = SamplingParams(max_tokens=20)
    (off,) = run(make_engine(logits, V, eos_ids=eos), request([1], params))
    (on,) = run(
        make_engine(logits, V, {"scripted": oracle(logits)}, eos_ids=eos), request([1], params, speculate(4))
    )
    assert outcome(on) == outcome(off)
    assert on.finish_reason is FinishReason.STOP
    assert on.token_ids == tuple(chain[: index + 2])
    assert on.text == "".join(chr(97 + i) for i in chain[: index + 1])
    # What was accepted but not emitted does not count.
    assert on.speculation.num_emitted == index + 1
    assert on.speculation.num_accepted == min(index + 1, 4)
    assert on.usage.completion_tokens == on.speculation.num_emitted + 1


def _spelling(text: str) -> tuple[list[bytes], list[int]]:
    """One token a character, in order, after token 0 as the prompt."""
    return [b"<", *(c.encode() for c in text)], list(range(1, len(text) + 1))


@pytest.mark.parametrize("begin", range(17))
def test_stop_string_early_in_a_long_accepted_run(begin: int) -> None:
    """B9: "END" at each place of a block of 16, and across two blocks."""
    text = "x" * begin + "END" + "y" * 30
    tokens, chain = _spelling(text)
    logits = table_logits(dict(zip([0, *chain], chain, strict=False)), len(tokens))
    params = SamplingParams(max_tokens=30, stop="END", logprobs=0)
    (off,) = run(make_engine(logits, len(tokens), tokens=tokens), request([0], params))
    engine = make_engine(logits, len(tokens), {"scripted": oracle(logits)}, tokens=tokens)
    (on,) = run(engine, request([0], params, speculate(16)))
    assert outcome(on) == outcome(off)
    assert on.text == "x" * begin
    assert on.finish_reason is FinishReason.STOP
    # Ids, log-probabilities and usage are trimmed to match the text.
    assert len(on.token_ids) == begin == on.usage.completion_tokens == len(on.logprobs or ())
    assert on.speculation.num_accepted <= on.speculation.num_emitted == max(0, begin - 1)


@pytest.mark.parametrize("begin", [1, 4, 7])
def test_stop_string_that_an_earlier_answer_is_drafted_from(begin: int) -> None:
    """B9: a store that has "END" and what followed it, from an answer for which it was no stop."""
    text = "abcdefgh"[:begin] + "END```\nijkl"
    tokens, chain = _spelling(text)
    logits = table_logits(dict(zip([0, *chain], chain, strict=False)), len(tokens))
    suffix = SuffixDrafter(min_match_length=1, answers=AnswerStore())
    engine = make_engine(logits, len(tokens), {"suffix": suffix}, tokens=tokens)
    cap = SamplingParams(max_tokens=len(text))
    (first,) = run(engine, request([0], cap, speculate(12, "suffix")))
    assert first.text == text
    stopping = cap.model_copy(update={"stop": ("END",)})
    (off,) = run(engine, request([0], stopping))
    (on,) = run(engine, request([0], stopping, speculate(12, "suffix")))
    assert outcome(on) == outcome(off)
    assert (on.text, on.finish_reason) == (text[:begin], FinishReason.STOP)
    assert on.speculation.num_drafted > begin + 3  # the block ran on behind the stop


@pytest.mark.parametrize(
    ("block", "token_ids", "reason"),
    [
        ([7, 8, 9, 3, 13, 14, 15], [7, 8, 9, 3], FinishReason.STOP),
        ([7, 8, 9, 12, 13, 14, 3], [7, 8, 9, 12, 13, 14], FinishReason.LENGTH),
        ([7, 8, 9, 12, 13, 3, 15], [7, 8, 9, 12, 13, 3], FinishReason.STOP),
    ],
)
def test_cap_does_not_hide_an_earlier_stop(
    block: list[int], token_ids: list[int], reason: FinishReason
) -> None:
    """B11: a stop before, after, and exactly at max_tokens; at a tie the stop wins."""
    logits = table_logits(dict(zip([1, *block], block, strict=False)), V)
    params = SamplingParams(max_tokens=6, stop_token_ids=(3,))
    for speculation in (OFF, speculate(6)):
        engine = make_engine(logits, V, {"scripted": oracle(logits)})
        (result,) = run(engine, request([1], params, speculation))
        assert list(result.token_ids) == token_ids
        assert result.finish_reason is reason


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_of_drafted_tokens(temperature: float) -> None:
    """B13: accepted, corrected and bonus tokens all carry the target's log-probabilities."""
    logits = hashed_logits(V)
    params = SamplingParams(temperature=temperature, logprobs=3, max_tokens=24)
    (off,) = run(make_engine(logits, V), request([1, 2], params, seed=9))
    # The off-run's own tokens, wrong at every third place.
    answer = [1, 2, *off.token_ids]

    def half(asked) -> list[int]:  # type: ignore[no-untyped-def]
        n = len(asked.token_ids)
        return [t if (n + i) % 3 else (t + 1) % V for i, t in enumerate(answer[n : n + asked.draft_length])]

    engine = make_engine(logits, V, {"scripted": ScriptedDrafter(half)})
    (on,) = run(engine, request([1, 2], params, speculate(4), seed=9))
    assert 0 < on.speculation.num_accepted < on.speculation.num_drafted
    assert outcome(on) == outcome(off)
    assert on.logprobs is not None
    assert on.logprobs == off.logprobs
    assert len(on.logprobs) == 24
    assert all(p.logprob < 0 and len(p.top) == 3 for p in on.logprobs)
    assert [p.token_id for p in on.logprobs] == list(on.token_ids)
    if temperature == 0.0:
        assert all(p.top[0] == (p.token_id, p.logprob) for p in on.logprobs)


@pytest.mark.parametrize(
    ("row", "params", "expected"),
    [
        ([2.0, 1.5, 1.0], {"frequency_penalty": 0.6}, "abacbacb"),
        ([2.0, 1.9, 1.0], {"repetition_penalty": 1.25}, "abaaaaaa"),
    ],
)
def test_penalties_count_tokens_of_the_same_block(
    row: list[float], params: dict[str, float], expected: str
) -> None:
    """B19: counts include the tokens earlier in the block."""
    row = [*row, -50.0]
    for speculation in (OFF, speculate(4)):
        engine = make_engine(lambda _: row, 4, {"scripted": always(0, 0, 0, 0)})
        (result,) = run(engine, request([3], SamplingParams(max_tokens=8, **params), speculation))
        assert result.text == expected


def test_min_p_holds_at_every_drafted_position() -> None:
    """B20 (a): a token below min_p never comes, however often it is drafted."""
    row = np.log([0.6, 0.3, 0.1]).tolist()
    engine = make_engine(lambda _: row, 3, {"scripted": always(2, 2, 2)}, num_blocks=700)
    params = SamplingParams(temperature=1.0, min_p=0.4, max_tokens=10_000)
    (result,) = run(engine, request([0], params, speculate(3), seed=1))
    assert result.token_ids.count(2) == 0
    assert abs(result.token_ids.count(0) / 10_000 - 2 / 3) < 0.02


@pytest.mark.parametrize(("bias", "expected"), [({2: 100.0}, {2}), ({0: -100.0}, {1})])
def test_logit_bias_holds_at_every_drafted_position(bias: dict[int, float], expected: set[int]) -> None:
    """B20 (b), (c): with a drafter that knows nothing of the bias."""
    row = np.log([0.6, 0.3, 0.1]).tolist()
    engine = make_engine(lambda _: row, 3, {"scripted": always(0, 0, 0, 0)})
    params = SamplingParams(logit_bias=bias, max_tokens=16)
    (result,) = run(engine, request([0], params, speculate(4)))
    assert set(result.token_ids) == expected


def test_drafts_outside_the_vocabulary_never_reach_the_target() -> None:
    """B25 (c): padding rows, negative ids and ids past the end are dropped with all that follows."""
    logits = hashed_logits(V)
    params = SamplingParams(max_tokens=20)
    expected = outcome(run(make_engine(logits, V), request([1], params))[0])
    for bad in (V, V + 5, -1, 10**9):
        engine = make_engine(logits, V, {"scripted": always(3, bad, 4)})
        assert outcome(run(engine, request([1], params, speculate(3)))[0]) == expected
    engine = make_engine(logits, V, {"scripted": ScriptedDrafter(lambda asked: [1] * 50)})
    assert outcome(run(engine, request([1], params, speculate(3)))[0]) == expected
    assert max(engine._model.rows) == 4  # never more than was asked for


@pytest.mark.parametrize("drafter", ["oracle", "suffix"])
def test_draft_longer_than_the_room_left(drafter: str) -> None:
    """B46: context 64, prompts of 48 to 63 tokens, drafts of 16, no max_tokens; one of 64 is refused."""
    logits = hashed_logits(V, sharpness=0.1) if drafter == "oracle" else table_logits({1: 2, 2: 1}, V)
    prompts = [[1, 2] * 32 for _ in range(48, 64)]
    prompts = [p[:n] for p, n in zip(prompts, range(48, 64), strict=True)]

    def answers(speculation, drafters):  # type: ignore[no-untyped-def]
        engine = make_engine(logits, V, drafters, context_length=64)
        return [outcome(r) for r in run(engine, *(request(p, None, speculation) for p in prompts))]

    off = answers(OFF, {})
    on = answers(speculate(16, drafter), {"oracle": oracle(logits), "suffix": SuffixDrafter()})
    assert on == off
    for prompt, (token_ids, _, reason, usage) in zip(prompts, on, strict=True):
        assert len(token_ids) == 64 - len(prompt) == usage.completion_tokens
        assert reason is FinishReason.LENGTH
