"""The table of presets is consistent with itself."""

from __future__ import annotations

import re

import pytest

from paceline.models.presets import DEFAULT_DRAFT, DEFAULT_TARGET, PRESETS, PackageParts, Preset


@pytest.mark.parametrize("preset", PRESETS.values(), ids=str)
def test_each_preset_is_pinned(preset: Preset) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", preset.sha256)
    assert preset.size > 0
    assert preset.license
    assert len(preset.packages.requirements) == preset.packages.count
    assert all(re.fullmatch(r"[a-z0-9.-]+==\d+(\.\d+)+", line) for line in preset.packages.requirements)
    re.compile(preset.packages.payload)


def test_names_and_hashes_are_unique() -> None:
    assert all(name == preset.name for name, preset in PRESETS.items())
    assert len({preset.sha256 for preset in PRESETS.values()}) == len(PRESETS)


def test_the_default_pair_comes_first_and_comes_from_the_hub_too() -> None:
    assert list(PRESETS)[:2] == [DEFAULT_TARGET, DEFAULT_DRAFT]
    assert PRESETS[DEFAULT_TARGET].hub is not None
    assert PRESETS[DEFAULT_DRAFT].hub is not None


def test_parts_are_asked_for_in_number_order() -> None:
    parts = PackageParts("stem-part", "1.0", 11, "x")
    assert parts.requirements[0] == "stem-part1==1.0"
    assert parts.requirements[9:] == ("stem-part10==1.0", "stem-part11==1.0")


def test_a_single_package_has_no_number() -> None:
    assert PackageParts("whole", "1.0", 1, "x").requirements == ("whole==1.0",)
