"""Fixtures that the whole suite shares."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NATIVE = "paceline.kernels._native"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native", type=Path, help="folder of another build of the native module to test")


def pytest_configure(config: pytest.Config) -> None:
    """Put the build that was asked for in the place of the installed one, before anything imports that."""
    folder = config.getoption("--native")
    if folder is None:
        return
    (path,) = folder.glob("_native.*.so")
    spec = importlib.util.spec_from_file_location(NATIVE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NATIVE] = module
    import paceline.kernels

    paceline.kernels._native = module


def pytest_report_header(config: pytest.Config) -> str:
    from paceline.kernels import _native

    return f"native module: {_native.__file__}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `isa` once for each instruction set that this machine has."""
    from paceline.kernels import _native  # not before --native had its say

    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", _native.isas(), indirect=True)


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Use one instruction set for the length of a test."""
    from paceline.kernels import _native

    before = _native.isa()
    _native.set_isa(request.param)
    yield request.param
    _native.set_isa(before)


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """The package's own pool is what runs in parallel; a second one would only be in its way."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def preset_path() -> Callable[[str], Path]:
    """Return a function from a preset's name to its file, fetched where this machine lacks it."""
    from paceline.models.download import resolve

    return resolve
