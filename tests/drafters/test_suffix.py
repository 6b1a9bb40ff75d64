from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.interface import DraftRequest
from paceline.drafters.suffix import SuffixAutomaton, SuffixDrafter
from paceline.records import SamplingParams, Verification
from paceline.sampling.state import SamplingState

STATE = SamplingState(SamplingParams(), 0, (), frozenset(), vocab_size=100)


def ask(token_ids: Sequence[int], draft_length: int = 4, sequence_id: int = 0) -> DraftRequest:
    return DraftRequest(sequence_id, token_ids, draft_length, STATE, Verification.COUPLED)


def propose(drafter: SuffixDrafter, token_ids: Sequence[int], draft_length: int = 4) -> tuple[int, ...]:
    return drafter.propose([ask(token_ids, draft_length)])[0].token_ids


def longest_earlier_suffix(token_ids: list[int]) -> int:
    """The specification, by trying every length."""
    n = len(token_ids)
    for length in range(n - 1, 0, -1):
        suffix = token_ids[n - length :]
        if any(token_ids[i : i + length] == suffix for i in range(n - length)):
            return length
    return 0


@given(st.lists(st.integers(0, 2), max_size=60))
def test_the_match_is_the_longest_and_its_end_is_right(token_ids: list[int]) -> None:
    automaton = SuffixAutomaton()
    for n, token_id in enumerate(token_ids, 1):
        automaton.extend([token_id])
        length, end = automaton.match
        assert length == longest_earlier_suffix(token_ids[:n])
        if length:
            assert end < n - 1
            assert token_ids[end - length + 1 : end + 1] == token_ids[n - length : n]


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2], (3, 4, 5, 9)),
        ([7, 7, 7], (7, 7, 7, 7)),
        ([1, 2, 1, 2, 1, 2], (1, 2, 1, 2)),
        ([1, 2, 3, 4], ()),
        ([3, 5, 3], ()),  # one token is too short a match
        ([1, 2, 8, 1, 2, 9, 1, 2], (9, 1, 2, 9)),  # the most recent continuation
        ([0, 1, 2, 8, 5, 1, 2, 9, 0, 1, 2], (8, 5, 1, 2)),  # but a longer match comes first
    ],
)
def test_what_is_proposed(token_ids: list[int], expected: tuple[int, ...]) -> None:
    assert propose(SuffixDrafter(), token_ids) == expected


def test_a_growing_history_is_read_once() -> None:
    drafter, fresh = SuffixDrafter(), SuffixDrafter()
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]
    for n in range(1, len(text) + 1):
        assert propose(drafter, text[:n]) == SuffixDrafter().propose([ask(text[:n])])[0].token_ids
    assert propose(fresh, text) == propose(drafter, text)


def test_sequences_do_not_see_each_other() -> None:
    drafter = SuffixDrafter()
    answers = drafter.propose([ask([1, 2, 3, 1, 2], sequence_id=1), ask([1, 2], sequence_id=2)])
    assert [a.token_ids for a in answers] == [(3, 1, 2, 3), ()]
    drafter.release(1)
    drafter.release(99)
    assert drafter.propose([ask([1, 2], sequence_id=1)])[0].token_ids == ()


def test_longer_matches_are_surer() -> None:
    drafter = SuffixDrafter()
    (short,) = drafter.propose([ask([1, 2, 9, 1, 2], sequence_id=1)])
    (long,) = drafter.propose([ask([1, 2, 3, 4, 9, 1, 2, 3, 4], sequence_id=2)])
    assert 0 < short.confidences[0] < long.confidences[0] < 1
    assert short.sampled_from is None
