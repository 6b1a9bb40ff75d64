"""The mixed drafter: who proposes for which sequence, in one batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.interface import DraftProposal, DraftRequest
from paceline.drafters.mixed import MixedDrafter
from paceline.drafters.scripted import ScriptedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.records import SamplingParams, Verification
from paceline.sampling.state import SamplingState

STATE = SamplingState(SamplingParams(), 0, (), frozenset(), vocab_size=100)


def ask(sequence_id: int, token_ids: Sequence[int], scope: Hashable = None) -> DraftRequest:
    return DraftRequest(sequence_id, token_ids, 3, STATE, Verification.COUPLED, scope)


def mixed(min_match_length: int = 3) -> tuple[MixedDrafter, ScriptedDrafter]:
    model = ScriptedDrafter(lambda asked: DraftProposal((90, 91), (0.5, 0.5)), name="model")
    return MixedDrafter(SuffixDrafter(answers=AnswerStore()), model, min_match_length), model


def test_each_sequence_of_a_batch_has_its_own_drafter_and_the_order_is_kept() -> None:
    drafter, model = mixed()
    proposals = drafter.propose(
        [ask(1, [5, 6]), ask(2, [1, 2, 3, 9, 1, 2, 3]), ask(3, [8, 8]), ask(4, [4, 5, 6, 7, 4, 5, 6])]
    )
    assert [p.token_ids for p in proposals] == [(90, 91), (9, 1, 2), (90, 91), (7, 4, 5)]
    assert [r.sequence_id for r in model.requests] == [1, 3]


def test_a_match_that_is_too_short_is_left_to_the_model() -> None:
    drafter, model = mixed(min_match_length=4)
    assert drafter.propose([ask(1, [1, 2, 3, 9, 1, 2, 3])])[0].token_ids == (90, 91)
    assert len(model.requests) == 1


def test_a_match_with_nothing_behind_it_is_left_to_the_model() -> None:
    drafter, _ = mixed()
    drafter.learn("a", [1, 2, 3])
    assert drafter.propose([ask(1, [1, 2, 3], "a")])[0].token_ids == (90, 91)


def test_the_model_is_not_asked_where_all_have_matches() -> None:
    drafter, model = mixed()
    drafter.propose([ask(1, [1, 2, 3, 9, 1, 2, 3])])
    assert model.requests == []


def test_both_learn_and_both_forget() -> None:
    drafter, model = mixed()
    drafter.learn("a", [1, 2, 3, 4])
    assert drafter.propose([ask(7, [1, 2, 3], "a")])[0].token_ids == (4,)
    assert drafter.propose([ask(8, [1, 2, 3], "b")])[0].token_ids == (90, 91)
    drafter.release(7)
    assert model.learned == [("a", (1, 2, 3, 4))]
    assert model.released == [7]
