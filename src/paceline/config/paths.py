"""Where the package keeps files on this machine."""

from __future__ import annotations

from pathlib import Path

from paceline.config.settings import load_settings


def cache_dir() -> Path:
    """Return the folder of everything that can be fetched again: PACELINE_CACHE, or `~/.cache/paceline`."""
    return load_settings().cache


def models_dir() -> Path:
    """Return the folder that holds preset model files, `<cache>/models/<preset>.gguf`."""
    return cache_dir() / "models"
