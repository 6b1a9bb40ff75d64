"""What a step sends over a link."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.planner.placement import LINKS, Link, step_transfer

LINK = Link("test", 1.0, 1e-4)


def test_ids_go_one_way_and_what_was_emitted_the_other() -> None:
    sent = step_transfer(LINK, 10, 4, 1000, sends_probabilities=False)
    assert sent.to_target_bytes == 10 * 4 * 4
    assert sent.to_draft_bytes == 10 * (5 + 1) * 4
    assert sent.seconds == pytest.approx(2e-4 + 400e-9)


def test_rejection_verification_sends_the_whole_distribution_of_each_draft() -> None:
    sent = step_transfer(LINK, 1, 4, 150_000, sends_probabilities=True)
    assert sent.to_target_bytes == 4 * (4 + 4 * 150_000)
    assert sent.seconds == pytest.approx(2e-4 + (sent.to_target_bytes + 24) / 1e9)


def test_named_links_are_in_order_of_what_they_carry() -> None:
    speeds = [one.gb_s for one in (LINKS["nvlink4"], LINKS["pcie5"], LINKS["pcie4"], LINKS["ethernet-100g"])]
    assert speeds == sorted(speeds, reverse=True)


@pytest.mark.parametrize(
    ("link", "sequences", "length"),
    [(LINK, 0, 4), (LINK, 1, 0), (Link("x", 0, 0), 1, 1), (Link("x", 1, -1), 1, 1)],
)
def test_figures_out_of_range_are_refused(link: Link, sequences: int, length: int) -> None:
    with pytest.raises(ConfigError, match="Correct them"):
        step_transfer(link, sequences, length, 1000, sends_probabilities=False)
