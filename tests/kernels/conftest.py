"""Fixtures of the tests of native kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def restore_native_threads() -> Iterator[None]:
    """Set the pool's size back after a test that changes it."""
    from paceline.kernels import _native

    before = _native.num_threads()
    yield
    _native.set_num_threads(before)
