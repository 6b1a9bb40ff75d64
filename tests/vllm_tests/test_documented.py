"""Configurations that the documentation shows are ones that would start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.config.server import ServeSettings
from paceline.vllm.flags import launch_of

ROOT = Path(__file__).parents[2]
PLACE = Path("/etc/paceline/paceline.yaml")


def blocks(name: str) -> Iterator[Any]:
    """Yield each configuration of a page, those within config maps too."""
    for block in re.findall(r"^```yaml\n(.*?)^```$", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE):
        for document in yaml.safe_load_all(block):
            inner = document.get("data", {}).get(PLACE.name)
            document = document if inner is None else yaml.safe_load(inner)
            if "target" in document:
                yield document


@pytest.mark.parametrize(
    ("name", "count"), [("README.md", 1), ("docs/server.md", 1), ("docs/vllm.md", 4), ("docs/policy.md", 1)]
)
def test_each_configuration_is_sound(name: str, count: int) -> None:
    found = list(blocks(name))
    assert len(found) == count
    for one in found:
        settings = ServeSettings.of(one, PLACE)
        assert settings.engine.default_route in settings.engine.routes
        if name == "docs/vllm.md":
            assert launch_of(settings).notes == ()
