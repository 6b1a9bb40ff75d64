"""The suffix drafter against naive searches, its bounds in memory and work, and the walls between scopes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.answer_store import NUM_GENERATIONS, AnswerStore
from paceline.drafters.interface import DraftRequest
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafters.suffix_automaton import MAX_SUFFIX_DEPTH, SuffixAutomaton
from paceline.drafters.suffix_match import MAX_MATCH_LENGTH
from paceline.records import SamplingParams, Verification
from paceline.sampling.state import SamplingState

STATE = SamplingState(SamplingParams(), 0, (), frozenset(), vocab_size=100)

few_tokens = st.lists(st.integers(0, 2), max_size=30)


def ask(
    token_ids: Sequence[int], draft_length: int = 4, sequence_id: int = 0, scope: Hashable = None
) -> DraftRequest:
    return DraftRequest(sequence_id, token_ids, draft_length, STATE, Verification.COUPLED, scope)


def propose(
    drafter: SuffixDrafter, token_ids: Sequence[int], draft_length: int = 4, **more: Hashable
) -> tuple[int, ...]:
    return drafter.propose([ask(token_ids, draft_length, **more)])[0].token_ids  # type: ignore[arg-type]


def longest_earlier_suffix(token_ids: list[int]) -> int:
    """The specification, by trying every length."""
    n = len(token_ids)
    for length in range(n - 1, 0, -1):
        suffix = token_ids[n - length :]
        if any(token_ids[i : i + length] == suffix for i in range(n - length)):
            return length
    return 0


def most_frequent_next(texts: Sequence[Sequence[int]], context: Sequence[int]) -> int | None:
    """The specification of what follows a context: the most frequent, then the most recent."""
    n = len(context)
    found = [
        text[i + n] for text in texts for i in range(len(text) - n) if list(text[i : i + n]) == list(context)
    ]
    counts = Counter(found)
    return max(counts, key=lambda t: (counts[t], len(found) - found[::-1].index(t)), default=None)


def longest_suffix_in(texts: Sequence[Sequence[int]], token_ids: Sequence[int]) -> int:
    for length in range(min(len(token_ids), MAX_MATCH_LENGTH), 0, -1):
        suffix = list(token_ids[len(token_ids) - length :])
        if any(list(text[i : i + length]) == suffix for text in texts for i in range(len(text))):
            return length
    return 0


@settings(max_examples=50, deadline=None)
@given(few_tokens)
def test_the_match_is_the_longest_and_its_followers_are_counted(token_ids: list[int]) -> None:
    automaton = SuffixAutomaton()
    for n, token_id in enumerate(token_ids, 1):
        automaton.extend([token_id])
        length, state = automaton.repeat
        assert length == longest_earlier_suffix(token_ids[:n])
        if length:
            suffix = token_ids[n - length : n]
            places = [i for i in range(n - length + 1) if token_ids[i : i + length] == suffix]
            assert automaton.count_of(state) == len(places)
            assert automaton.most_frequent(state) == most_frequent_next([token_ids[:n]], suffix)


@settings(max_examples=50, deadline=None)
@given(st.lists(few_tokens, max_size=5), few_tokens)
def test_the_match_in_earlier_answers_is_the_longest(answers: list[list[int]], sequence: list[int]) -> None:
    store = AnswerStore()
    drafter = SuffixDrafter(1, store)
    fed: list[list[int]] = []
    # Answers come in while the sequence grows, so that a match may become longer behind its back.
    for n in range(1, len(sequence) + 1):
        if n % 12 == 0 and answers:
            fed.append(answers.pop())
            store.add(None, fed[-1])
        match = drafter.match(ask(sequence[:n]))
        own = longest_earlier_suffix(sequence[:n])
        stored = longest_suffix_in(fed, sequence[:n])
        assert match.length == max(own, stored)
        assert match.is_own == (own >= stored)
        if stored > own:
            token_ids = drafter.propose_from(match, 1).token_ids
            context = sequence[n - stored : n]
            ended = [[*text, 99] for text in fed]
            following = most_frequent_next(ended, context)
            # An end of an answer counts among what follows, and proposes nothing.
            assert token_ids == (() if following == 99 else (following,))


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2], (3, 4, 5, 9)),
        ([7, 7, 7], (7, 7, 7, 7)),
        ([1, 2, 1, 2, 1, 2], (1, 2, 1, 2)),
        ([1, 2, 3, 4], ()),
        ([3, 5, 3], ()),  # one token is too short a match
        ([1, 2, 8, 1, 2, 9, 1, 2], (9, 1, 2, 9)),  # the most recent continuation of equally frequent ones
        ([1, 2, 8, 1, 2, 8, 1, 2, 9, 1, 2], (8, 1, 2, 9)),  # the most frequent before the most recent
        ([0, 1, 2, 8, 5, 1, 2, 9, 0, 1, 2], (8, 5, 1, 2)),  # but a longer match comes first
    ],
)
def test_what_is_proposed(token_ids: list[int], expected: tuple[int, ...]) -> None:
    assert propose(SuffixDrafter(), token_ids) == expected


def test_an_earlier_answer_is_proposed_as_far_as_it_goes() -> None:
    drafter = SuffixDrafter(answers=AnswerStore())
    drafter.learn("a", [5, 6, 7, 8])
    assert propose(drafter, [1, 5, 6], scope="a") == (7, 8)
    assert propose(drafter, [1, 5, 6, 7, 8], scope="a") == ()


def test_what_followed_most_often_in_earlier_answers_is_proposed() -> None:
    drafter = SuffixDrafter(answers=AnswerStore())
    for last in (7, 8, 7, 9):
        drafter.learn(None, [5, 6, last])
    (proposal,) = drafter.propose([ask([5, 6], 1)])
    assert proposal.token_ids == (7,)
    assert proposal.confidences == (2 / (4 + 1 / 2),)


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


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 3), max_size=20)), max_size=30))
def test_nothing_of_another_scope_is_ever_matched(fed: list[tuple[str, list[int]]]) -> None:
    both, alone = AnswerStore(32, 10_000), AnswerStore(32, 10_000)
    for scope, answer in fed:
        both.add(scope, answer)
        if scope == "a":
            alone.add(scope, answer)
    together, separate = SuffixDrafter(1, both), SuffixDrafter(1, alone)
    for sequence_id, token_ids in enumerate(([0, 1], [1, 2, 3], [3], [2, 2])):
        request = ask(token_ids, sequence_id=sequence_id, scope="a")
        assert together.propose([request]) == separate.propose([request])


def test_the_oldest_answers_go_first_and_memory_is_bounded() -> None:
    store = AnswerStore(tokens_per_scope=40, max_tokens=60)
    drafter = SuffixDrafter(answers=store)
    for i in range(0, 90, 3):
        drafter.learn("a", [i, i + 1, i + 2])
        assert store.num_tokens <= 40
    assert propose(drafter, [87, 88], scope="a") == (89,)
    assert propose(drafter, [0, 1], scope="a", sequence_id=1) == ()
    # Ten tokens are a generation: two answers, with the marks behind them. The last eight answers are left.
    assert store.num_tokens == NUM_GENERATIONS * 8
    assert propose(drafter, [66, 67], scope="a", sequence_id=2) == (68,)
    assert propose(drafter, [63, 64], scope="a", sequence_id=3) == ()
    for i in range(10):
        drafter.learn("b", [i, i + 1, i + 2])
    assert store.num_tokens <= 60
    assert propose(drafter, [66, 67], scope="a", sequence_id=4) == ()
    assert propose(drafter, [87, 88], scope="a", sequence_id=5) == (89,)


def test_scopes_without_end_are_bounded_too() -> None:
    store = AnswerStore(tokens_per_scope=40, max_tokens=60)
    for i in range(1000):
        store.add(i, [1, 2, 3, 4])
        assert store.num_tokens <= 60
    assert store.num_scopes == 12
    store.clear()
    assert (store.num_tokens, store.num_scopes) == (0, 0)


def test_of_a_long_answer_the_end_is_kept() -> None:
    store = AnswerStore(tokens_per_scope=40, max_tokens=40)
    drafter = SuffixDrafter(answers=store)
    drafter.learn(None, range(100))
    assert store.num_tokens == 10
    assert propose(drafter, [97, 98]) == (99,)


@pytest.mark.parametrize(("per_scope", "over_all"), [(4, 100), (100, 50)])
def test_a_store_without_room_is_refused(per_scope: int, over_all: int) -> None:
    with pytest.raises(ValueError, match="tokens a scope"):
        AnswerStore(per_scope, over_all)


class CountingArray:
    """An array that counts how often it is read or written."""

    def __init__(self, values: array[int]) -> None:
        self.values = values
        self.num_accesses = 0

    def __getitem__(self, index: int) -> int:
        self.num_accesses += 1
        return self.values[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.num_accesses += 1
        self.values[index] = value

    def __len__(self) -> int:
        return len(self.values)

    def append(self, value: int) -> None:
        self.num_accesses += 1
        self.values.append(value)


def watched() -> tuple[SuffixAutomaton, list[CountingArray]]:
    automaton = SuffixAutomaton()
    arrays = []
    for name in ("_lengths", "_links", "_counts", "_tokens", "_targets"):
        arrays.append(CountingArray(getattr(automaton, name)))
        setattr(automaton, name, arrays[-1])
    return automaton, arrays


def pseudorandom(n: int, vocabulary: int) -> list[int]:
    state, out = 1, []
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((state >> 33) % vocabulary)
    return out


TEXTS = {
    "one token": lambda n: [7] * n,
    "a period": lambda n: [i % 5 for i in range(n)],
    "growing periods": lambda n: [int(i**0.5) ** 2 == i for i in range(n)],
    "two tokens": lambda n: pseudorandom(n, 2),
    "many tokens": lambda n: pseudorandom(n, 50_000),
    "one context, many followers": lambda n: [i // 3 if i % 3 == 2 else i % 3 for i in range(n)],
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("n", [500, 2_500])
def test_work_and_memory_a_token_are_bounded_whatever_the_text(kind: str, n: int) -> None:
    automaton, arrays = watched()
    automaton.extend(int(token_id) for token_id in TEXTS[kind](n))
    # Six accesses for each suffix that is counted, and a constant share of new states and moved transitions.
    assert sum(a.num_accesses for a in arrays) / n <= 6 * MAX_SUFFIX_DEPTH + 40
    assert automaton.num_states <= 2 * n
    assert sum(map(len, automaton._branches.values())) <= 3 * n


@pytest.mark.parametrize("kind", TEXTS)
def test_work_to_find_and_copy_a_match_does_not_grow_with_the_text(kind: str) -> None:
    per_token = []
    for n in (400, 2_000):
        text = [int(token_id) for token_id in TEXTS[kind](n)]
        automaton, arrays = watched()
        automaton.extend(text[: n // 2])
        store = AnswerStore()
        store._scopes["scope"] = [automaton]  # type: ignore[list-item]
        for counted in arrays:
            counted.num_accesses = 0
        drafter = SuffixDrafter(1, store)
        for end in range(n // 2 + 1, n + 1):
            drafter.propose([ask(text[:end], 4, scope="scope")])
        per_token.append(sum(a.num_accesses for a in arrays) / (n // 2))
    assert per_token[1] <= 1.5 * per_token[0] + 10
