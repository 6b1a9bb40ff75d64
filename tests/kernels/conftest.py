"""Fixtures of the tests of native kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


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


@pytest.fixture
def restore_native_threads() -> Iterator[None]:
    """Set the pool's size back after a test that changes it."""
    from paceline.kernels import _native

    before = _native.num_threads()
    yield
    _native.set_num_threads(before)
