from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from paceline.drafters.interface import DraftRequest
from paceline.drafters.model import ModelDrafter
from paceline.models.scripted import ScriptedModel, table_logits
from paceline.records import SamplingParams, Verification
from paceline.sampling import coupled, rejection
from paceline.sampling.processors import process
from paceline.sampling.state import SamplingState
from tests.engine.scripted import draft_model, hashed_logits

V = 10
CYCLE = table_logits({i: (i + 1) % 8 for i in range(8)}, V)


def ask(
    token_ids: Sequence[int],
    draft_length: int = 3,
    *,
    sequence_id: int = 0,
    params: SamplingParams | None = None,
    verification: Verification = Verification.COUPLED,
    num_prompt: int = 1,
) -> DraftRequest:
    state = SamplingState(params or SamplingParams(), 7, token_ids[:num_prompt], frozenset(), vocab_size=V)
    state.append(token_ids[num_prompt:])
    return DraftRequest(sequence_id, token_ids, draft_length, state, verification)


def make(model: ScriptedModel, **more: object) -> ModelDrafter:
    options: dict[str, object] = {"num_blocks": 16, "block_size": 4, **more}
    return draft_model(model, **options)  # type: ignore[arg-type]


def test_all_sequences_draft_in_one_batch() -> None:
    model = ScriptedModel(CYCLE, V)
    drafter = make(model)
    answers = drafter.propose(
        [ask([1, 2], 3, sequence_id=1), ask([4], 1, sequence_id=2), ask([6], 2, sequence_id=3)]
    )
    assert [a.token_ids for a in answers] == [(3, 4, 5), (5,), (7, 0)]
    assert model.rows == [4, 2, 1]
    assert all(c == pytest.approx(1.0) for a in answers for c in a.confidences)


def test_only_what_is_missing_is_fed() -> None:
    model = ScriptedModel(CYCLE, V)
    drafter = make(model)
    drafter.propose([ask([1, 2])])
    model.rows.clear()
    drafter.propose([ask([1, 2, 3, 4, 5, 6])])  # all accepted, and a bonus
    assert model.rows == [2, 1, 1]
    model.rows.clear()
    drafter.propose([ask([1, 2, 3, 4, 5, 6, 9])])  # the first draft fell
    assert model.rows == [1, 1, 1]


@pytest.mark.parametrize("num_accepted", range(5))
def test_what_fell_leaves_no_trace_in_the_cache(num_accepted: int) -> None:
    """Even where the sequence went on for a few steps without asking."""
    logits = hashed_logits(V)
    drafter = make(ScriptedModel(logits, V))
    drafts = drafter.propose([ask([1, 2, 3], 4)])[0].token_ids
    other = (drafts[num_accepted % 4] + 1) % V
    grown = [1, 2, 3, *drafts[:num_accepted], other, 5, 6, 7]
    fresh = make(ScriptedModel(logits, V))
    assert drafter.propose([ask(grown, 4)]) == fresh.propose([ask(grown, 4)])


def test_a_long_gap_is_computed_a_chunk_a_call() -> None:
    model = ScriptedModel(CYCLE, V)
    drafter = make(model, prefill_chunk=10)
    asked = ask([i % 8 for i in range(38)], 2)
    assert [drafter.propose([asked])[0].token_ids for _ in range(4)] == [(), (), (), (6, 7)]
    assert model.rows == [10, 10, 10, 8, 1]


def test_those_who_lack_little_do_not_wait_for_those_who_lack_much() -> None:
    model = ScriptedModel(CYCLE, V)
    drafter = make(model, prefill_chunk=10)
    short, long = ask([4, 5], 2, sequence_id=1), ask([i % 8 for i in range(30)], 2, sequence_id=2)
    answers = drafter.propose([long, short])
    assert [a.token_ids for a in answers] == [(), (6, 7)]
    assert model.rows == [10, 1]  # two rows of the short one and eight of the long one share a pass


def test_drafting_stops_at_an_end_token() -> None:
    model = ScriptedModel(CYCLE, V)
    drafter = make(model, end_token_ids=frozenset({4}))
    (answer,) = drafter.propose([ask([2], 5)])
    assert answer.token_ids == (3, 4)


def test_without_room_nothing_is_proposed_and_nothing_is_held() -> None:
    drafter = make(ScriptedModel(CYCLE, V), num_blocks=3)
    small, large = ask([1, 2], 2, sequence_id=1), ask([i % 8 for i in range(9)], 2, sequence_id=2)
    assert [a.token_ids for a in drafter.propose([small, large])] == [(3, 4), ()]
    assert drafter.pool.num_used == 1
    drafter.release(1)
    assert drafter.pool.num_used == 0


def test_past_the_draft_models_own_context_nothing_is_proposed() -> None:
    drafter = make(ScriptedModel(CYCLE, V, context_length=8))
    assert drafter.propose([ask([1, 2, 3, 4, 5, 6], 3)])[0].token_ids == (7, 0, 1)
    assert drafter.propose([ask([1, 2, 3, 4, 5, 6, 7], 3)])[0].token_ids == ()


def test_drafts_carry_the_targets_noise() -> None:
    def logits(token_ids: Sequence[int]) -> np.ndarray:
        return np.random.default_rng(len(token_ids)).normal(size=V).astype(np.float32)

    params = SamplingParams(temperature=1.0)
    drafter = make(ScriptedModel(logits, V))
    asked = ask([1, 2, 3], 3, params=params)
    (answer,) = drafter.propose([asked])
    history = [1, 2, 3]
    for offset, token_id in enumerate(answer.token_ids):
        distribution = process(logits(history), asked.sampling, answer.token_ids[:offset])
        assert token_id == coupled.sample(distribution, 7, 2 + offset)
        assert answer.confidences[offset] == pytest.approx(distribution.prob_of(token_id), rel=1e-5)
        history.append(token_id)
    assert answer.sampled_from is None


def test_rejection_gets_the_distributions_that_were_sampled_from() -> None:
    drafter = make(ScriptedModel(lambda _: [0.0] * V, V))
    params = SamplingParams(temperature=1.0, top_k=4)
    (answer,) = drafter.propose([ask([1], 3, params=params, verification=Verification.REJECTION)])
    assert answer.sampled_from is not None
    assert [len(d.token_ids) for d in answer.sampled_from] == [4, 4, 4]


def test_sampled_drafts_have_new_noise_in_each_step() -> None:
    drafter = make(ScriptedModel(lambda _: [0.0] * V, V))
    asked = ask([1, 2, 3], 3, params=SamplingParams(temperature=1.0), verification=Verification.REJECTION)
    (answer,) = drafter.propose([asked])
    assert answer.sampled_from is not None
    expected = [
        rejection.draft_sample(distribution, 7, 2 + offset, step_start=2)
        for offset, distribution in enumerate(answer.sampled_from)
    ]
    assert list(answer.token_ids) == expected


def test_a_draft_model_without_an_answer_stops_quietly() -> None:
    def logits(token_ids: Sequence[int]) -> np.ndarray:
        return np.full(V, np.nan if len(token_ids) > 2 else 0.0, dtype=np.float32)

    drafter = make(ScriptedModel(logits, V))
    assert drafter.propose([ask([1, 2], 3)])[0].token_ids == (0,)
