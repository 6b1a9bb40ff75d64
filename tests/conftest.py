"""Fixtures that the whole suite shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


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
