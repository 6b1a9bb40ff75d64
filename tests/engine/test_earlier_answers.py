"""What earlier answers do to later requests: more drafts stand, answers are the same, and scopes hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.interface import Drafter
from paceline.drafters.mixed import MixedDrafter
from paceline.drafters.scripted import ScriptedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.engine import Engine
from paceline.models.scripted import ScriptedModel
from paceline.records import AnswerSharing, GenerationResult, SamplingParams, Verification
from tests.engine.scripted import (
    OFF,
    draft_model,
    hashed_logits,
    make_engine,
    outcome,
    request,
    run,
    speculate,
)

V = 40
LOGITS = hashed_logits(V)
PARAMS = SamplingParams(max_tokens=30)


def engine_with_store(**more: object) -> Engine:
    suffix = SuffixDrafter(answers=AnswerStore())
    model = draft_model(ScriptedModel(LOGITS, V), num_blocks=64, block_size=16)
    drafters: dict[str, Drafter] = {"suffix": suffix, "model": model, "mixed": MixedDrafter(suffix, model, 3)}
    return make_engine(LOGITS, V, drafters, **more)


def answer(engine: Engine, route: str | None = None, tenant: str | None = None) -> GenerationResult:
    asked = replace(request([1, 2, 3], PARAMS, speculate(4, "suffix")), route=route, tenant=tenant)
    return run(engine, asked)[0]


def test_a_repeated_question_is_drafted_from_its_earlier_answer() -> None:
    engine = engine_with_store()
    first, again = answer(engine, "r"), answer(engine, "r")
    assert outcome(first) == outcome(again)
    assert first.speculation.num_accepted == 0
    assert again.speculation.num_accepted > 20


@pytest.mark.parametrize(("route", "tenant"), [("s", "t"), ("r", "u"), (None, "t"), ("r", None)])
def test_another_route_or_tenant_gets_nothing_from_it(route: str | None, tenant: str | None) -> None:
    engine = engine_with_store()
    fresh = answer(engine, "r", "t")
    other = answer(engine, route, tenant)
    assert other.speculation.num_drafted == fresh.speculation.num_drafted
    assert other.speculation.num_accepted == 0


def test_sharing_can_be_configured() -> None:
    engine = engine_with_store(answer_sharing=AnswerSharing.ROUTE)
    answer(engine, "r", "t")
    assert answer(engine, "r", "u").speculation.num_accepted > 20
    assert answer(engine, "s", "t").speculation.num_accepted == 0


def test_only_whole_answers_of_requests_that_speculate_are_learned() -> None:
    drafter = ScriptedDrafter(lambda asked: [])
    engine = make_engine(LOGITS, V, {"scripted": drafter})
    run(engine, request([1], PARAMS, OFF), request([1], PARAMS, speculate(0)))
    assert drafter.learned == []
    engine.submit(request([1], PARAMS, speculate(3), request_id="aborted"))
    engine.step()
    engine.step()
    engine.abort("aborted")
    (result,) = run(engine, replace(request([1], PARAMS, speculate(3)), route="r", tenant="t"))
    assert drafter.learned == [(("t", "r"), result.token_ids)]


def test_what_a_failing_request_said_is_not_learned() -> None:
    def overflow_later(token_ids: object) -> np.ndarray:
        logits = LOGITS(token_ids)  # type: ignore[arg-type]
        return logits if len(token_ids) < 10 else np.full_like(logits, np.nan)  # type: ignore[arg-type]

    drafter = ScriptedDrafter(lambda asked: [])
    engine = make_engine(overflow_later, V, {"scripted": drafter})
    (result,) = run(engine, request([1], PARAMS, speculate(3)))
    assert result.error is not None
    assert drafter.learned == []


asked_requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=12),
        st.sampled_from([0.0, 0.8]),
        st.sampled_from(["suffix", "mixed", "model", "off"]),
        st.integers(1, 5),
        st.sampled_from(["r", "s"]),
        st.sampled_from(list(Verification)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(asked_requests)
def test_answers_never_change_whatever_was_answered_before(asked) -> None:  # type: ignore[no-untyped-def]
    engine = engine_with_store()
    for seed, (prompt, temperature, drafter, k, route, verification) in enumerate(asked):
        params = SamplingParams(max_tokens=20, temperature=temperature)
        is_sampled_by_rejection = temperature > 0 and verification is Verification.REJECTION
        rule = Verification.COUPLED if is_sampled_by_rejection else verification
        speculation = OFF if drafter == "off" else speculate(k, drafter, verification=rule)
        made = [replace(request(prompt, params, speculation, seed=seed), route=route) for _ in range(2)]
        plain = run(make_engine(LOGITS, V), request(prompt, params, seed=seed))[0]
        assert [outcome(r) for r in run(engine, *made)] == [outcome(plain)] * 2
