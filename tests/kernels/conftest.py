"""Fixtures of the tests of native kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.kernels import _native


@pytest.fixture(params=_native.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test once for each instruction set that this machine has."""
    before = _native.isa()
    _native.set_isa(request.param)
    yield request.param
    _native.set_isa(before)


@pytest.fixture
def restore_native_threads() -> Iterator[None]:
    """Set the pool's size back after a test that changes it."""
    before = _native.num_threads()
    yield
    _native.set_num_threads(before)
