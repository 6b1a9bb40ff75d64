"""Slices, settings and the order of turns."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.measure.turns import in_slices, in_turns, parse_settings, slice_size

NAMES = ("model", "suffix", "mixed")


def test_requests_are_cut_into_slices_of_which_none_is_short() -> None:
    assert in_slices(range(8), 4) == [range(4), range(4, 8)]
    assert in_slices(range(11), 4) == [range(4), range(4, 11)]
    assert in_slices(range(3), 4) == [range(3)]
    assert in_slices(range(3), 1) == [range(1), range(1, 2), range(2, 3)]
    assert in_slices(range(11), 0) == [range(11)]


def test_a_slice_has_a_request_for_each_client_at_least() -> None:
    assert [slice_size(None, 4), slice_size(0, 4), slice_size(4, 4), slice_size(9, 4)] == [4, 0, 4, 9]
    with pytest.raises(ConfigError, match="--slice 3 with 4 clients; expected 0, or a request for each"):
        slice_size(3, 4)


def test_settings_take_turns_at_being_first() -> None:
    settings = parse_settings("off,auto,model:2,suffix:4", NAMES)
    firsts = {next(in_turns(settings, repeat, 0)).label for repeat in range(4)}
    assert firsts == {"off", "auto", "model:2", "suffix:4"}
    assert {mode.label for mode in in_turns(settings, 3, 5)} == firsts
    assert [mode.speculation.enabled for mode in settings] == [False, "auto", True, True]


@pytest.mark.parametrize(
    "text",
    ["off", "auto,model:2", "off,auto,model", "off,auto,model:0", "off,auto,magic:2", "off,off,auto", ""],
)
def test_settings_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Write --settings off,auto,model:2,model:4,suffix:4"):
        parse_settings(text, NAMES)
