"""Paceline and vLLM are installed into one environment: the versions that vLLM pins are of use to both."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]


def test_what_paceline_asks_for_is_what_comes_with_vllm() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    wrong = {
        line: version(one.name)
        for line in wanted
        if not (one := Requirement(line)).specifier.contains(version(one.name))
    }
    assert wrong == {}
