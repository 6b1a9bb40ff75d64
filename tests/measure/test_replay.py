"""What is read out of one reading of an answer, against engines that really draft: step by step the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.engine.scripted import (
    OFF,
    draft_model,
    hashed_logits,
    make_engine,
    request,
    run,
    speculate,
    spoiled,
)  # fmt: skip

from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.mixed import MixedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.engine import Engine
from paceline.measure.forecast import LoopRequest, forecast
from paceline.measure.load import LoadRequest
from paceline.measure.load_mode import Mode
from paceline.measure.reading import Answer, read_with_model, read_with_suffix
from paceline.measure.replay import MOST_DRAFTS, Reading, Tally, Trace, tally
from paceline.models.interface import CausalModel
from paceline.models.scripted import NextLogits, ScriptedModel
from paceline.policy.costs import CostCurve
from paceline.policy.step_costs import CalibratedCosts, StepCosts
from paceline.records import GenerationResult, Request, SamplingParams

V = 12
LENGTHS = (1, 2, 3, 5, 8)
TARGET = hashed_logits(V)
PROMPTS = [[1, 2, 3], [7, 7, 2, 9], [4] * 30, list(range(12)) * 3]
GREEDY, SAMPLED = SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=0.8)


def repetitive(token_ids: list[int]) -> np.ndarray:
    """A target that mostly goes on as the text did twelve tokens ago, so that look-ups are often right."""
    logits = np.asarray(TARGET(list(token_ids[-3:]))).copy()
    if len(token_ids) > 12 and sum(token_ids) % 5:
        logits[token_ids[-12]] += 20
    return logits


def engine_of(next_logits: NextLogits, draft: CausalModel) -> Engine:
    suffix, model = SuffixDrafter(), draft_model(draft, num_blocks=128)
    drafters = {"suffix": suffix, "model": model, "mixed": MixedDrafter(suffix, model)}
    return make_engine(next_logits, V, drafters, num_blocks=256)


def asked(number: int, params: SamplingParams) -> Request:
    return request(PROMPTS[number], params, OFF, seed=number)


def readings(
    next_logits: NextLogits, params: SamplingParams
) -> tuple[list[GenerationResult], dict[str, list[Trace]]]:
    """Plain answers, and each drafter's trace of them."""
    draft = ScriptedModel(spoiled(next_logits), V)
    engine = engine_of(next_logits, draft)
    results, traces = [], {"suffix": [], "model": [], "mixed": []}
    for number, prompt in enumerate(PROMPTS):
        (result,) = run(engine, asked(number, params))
        answer = Answer(LoadRequest("r", "route", tuple(prompt), params, number), result.token_ids)
        (sequence,) = engine.prepare(answer.request.submitted(Mode()))
        drafter = draft_model(ScriptedModel(spoiled(next_logits), V), num_blocks=128, prefill_chunk=16)
        model = read_with_model(drafter, "model", sequence.number, answer, sequence.sampling)
        assert Reading.from_json(model.to_json()).trace.agreed.tolist() == model.trace.agreed.tolist()
        suffix = read_with_suffix(answer, None)
        assert Reading.from_json(suffix.to_json()) == suffix
        results.append(result)
        traces["model"].append(model.trace)
        traces["suffix"].append(suffix.trace)
        traces["mixed"].append(suffix.trace.mixed_with(model.trace, suffix.match_lengths))
    return results, traces


def counts(result: GenerationResult) -> tuple[int, int, int, list[int], list[int]]:
    found = result.speculation
    return (
        found.num_steps,
        found.num_drafted,
        found.num_accepted,
        list(found.drafted_by_position),
        list(found.accepted_by_position),
    )


def counted(found: Tally) -> tuple[int, int, int, list[int], list[int]]:
    drafted = [n for n in found.drafted_by_position if n]
    return (
        found.num_steps, found.num_drafted, found.num_accepted, drafted,
        [n for n in found.accepted_by_position if n],
    )  # fmt: skip


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("next_logits", [TARGET, repetitive], ids=["hashed", "repetitive"])
@pytest.mark.parametrize("drafter", ["model", "suffix", "mixed"])
def test_one_reading_gives_what_live_runs_count_at_every_draft_length(
    params: SamplingParams, next_logits: NextLogits, drafter: str
) -> None:
    results, traces = readings(next_logits, params)
    num_accepted = 0
    for length in LENGTHS:
        for number, plain in enumerate(results):
            engine = engine_of(next_logits, ScriptedModel(spoiled(next_logits), V))
            speculation = speculate(length, drafter)
            (live,) = run(engine, replace(asked(number, params), speculation=speculation))
            assert live.token_ids == plain.token_ids
            assert counts(live) == counted(tally(traces[drafter][number], 40, length))
            num_accepted += live.speculation.num_accepted
    if drafter != "suffix" or next_logits is repetitive:
        assert num_accepted > 40  # else hardly anything was compared


def test_a_wrong_reading_would_show() -> None:
    _, traces = readings(TARGET, GREEDY)
    trace = traces["model"][0]
    flipped = Trace(trace.proposed, np.where(trace.agreed > 0, 0, 1), trace.has_passes)
    assert counted(tally(flipped, 40, 3)) != counted(tally(trace, 40, 3))


def test_readings_go_no_further_than_drafts_that_are_looked_at() -> None:
    trace = Trace.of_model([True] * 40)
    assert trace.agreed.max() == trace.proposed.max() == MOST_DRAFTS
    assert tally(trace, 40, 4).num_wasted == 0
    # One token is out; eight steps of five leave a last one without drafts.
    assert tally(trace, 41, 4).num_steps == 8


def test_look_ups_may_know_other_answers() -> None:
    store = AnswerStore()
    answer = Answer(LoadRequest("r", "route", (1, 2), GREEDY, 0), (5, 6, 7, 8, 9, 10))
    assert not any(read_with_suffix(answer, store).agreed)
    store.add("route", answer.token_ids)
    assert read_with_suffix(answer, store).agreed[2:5] == (4, 3, 2)


@pytest.mark.parametrize("prompt", [20, 300, 500])
@pytest.mark.parametrize("length", [2, 5])
def test_a_run_on_paper_drafts_what_the_engine_does_long_prompts_among_them(prompt: int, length: int) -> None:
    """A draft model reads a long prompt in pieces, and drafts only when it is through."""
    tokens = [(7 * i) % V for i in range(prompt)]
    draft = ScriptedModel(spoiled(TARGET), V)
    engine = engine_of(TARGET, draft)
    (plain,) = run(engine, request(tokens, GREEDY, OFF))
    answer = Answer(LoadRequest("r", "route", tuple(tokens), GREEDY, 0), plain.token_ids)
    (sequence,) = engine.prepare(answer.request.submitted(Mode()))
    reader = draft_model(ScriptedModel(spoiled(TARGET), V), num_blocks=128)
    reading = read_with_model(reader, "model", sequence.number, answer, sequence.sampling)
    (live,) = run(engine, request(tokens, GREEDY, speculate(length, "model")))
    costs = StepCosts(CalibratedCosts(CostCurve.of({1: 1.0, 512: 1.0}), {"model": CostCurve.of({1: 0.1})}))
    found = forecast(costs, [LoopRequest(prompt, 40, reading.trace, 40)], 1, length)
    stats = live.speculation
    assert (found.num_sequence_steps, found.num_drafted, found.num_accepted) == (
        stats.num_steps, stats.num_drafted, stats.num_accepted,
    )  # fmt: skip
