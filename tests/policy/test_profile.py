"""What drafts that were kept say of longer ones."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.policy.acceptance import SourceAcceptance
from paceline.policy.counts import UNKNOWN, Counts, bin_of
from paceline.policy.profile import Prices, Profile
from paceline.policy.replay import NUM_KEPT, Borrowed, Draft
from tests.policy.test_tally import part

FREE = Prices(0.0, 0.0)
LIKELY = bin_of(0.96)


def profile_of(source: str, lengths: list[int], *, was_cut: bool) -> Profile:
    """The profile of eight drafts after so many were kept, each with likely tokens of so many."""
    known = SourceAcceptance(source, Counts(), Borrowed())
    for length in lengths * NUM_KEPT:
        known.replay.add(Draft([LIKELY] * length, was_cut))
    return known.replay.profile(8, 1.0, FREE)


def test_a_match_that_ended_by_itself_has_nothing_behind_it() -> None:
    found = profile_of("suffix", [2], was_cut=False)
    assert found.gain[1] > 0.8
    assert not found.gain[2:].any()
    assert not found.rows[2:].any()


def test_a_match_that_was_asked_for_no_more_goes_on_like_its_last_token() -> None:
    found = profile_of("suffix", [2], was_cut=True)
    assert (found.gain > 0.3).all()
    assert (found.rows > 0.99).all()


def test_a_look_up_without_a_match_gains_nothing_however_it_was_asked() -> None:
    found = profile_of("suffix", [0], was_cut=True)
    assert not found.gain.any()
    assert not found.rows.any()


@pytest.mark.parametrize("was_cut", [False, True])
def test_a_draft_model_could_always_have_gone_on(was_cut: bool) -> None:
    assert (profile_of("model", [2], was_cut=was_cut).gain > 0.3).all()


def test_what_drafts_say_does_not_depend_on_when_they_are_read() -> None:
    rng = np.random.default_rng(3)
    drafts = [
        Draft(rng.integers(0, UNKNOWN, rng.integers(0, 9)).tolist(), bool(rng.random() < 0.5))
        for _ in range(3 * NUM_KEPT)
    ]
    for source in ("suffix", "model"):
        often, once = (SourceAcceptance(source, Counts(), Borrowed()).replay for _ in range(2))
        for begin in range(0, len(drafts), 7):
            often.add(*drafts[begin : begin + 7])
            often.profile(8, 1.0, FREE)
            for draft in drafts[begin : begin + 7]:
                once.add(draft)
        assert often.latest() == once.latest()
        for now, then in zip(often.profile(8, 1.0, FREE), once.profile(8, 1.0, FREE), strict=True):
            assert (now == then).all()


def test_acceptance_by_position_is_that_of_the_tokens_that_were_verified_there() -> None:
    known = SourceAcceptance("model", Counts(), Borrowed())
    for num_drafted, num_accepted in ((3, 3), (3, 1), (1, 0), (2, 2)):
        known.observe(
            part(
                "r", asked=4, drafted=num_drafted, num_accepted=num_accepted, num_new_tokens=num_accepted + 1
            )
        )
    # A token behind the first one that was rejected is not judged.
    assert known.figure(()).by_position == (3 / 4, 2 / 3, 1.0)
