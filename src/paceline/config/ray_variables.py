"""Variables that Ray reads, set for this process and those that it starts."""

from __future__ import annotations

import os

DEFAULTS = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Ray reports how it is used to its makers unless told not to."""


def set_ray_defaults() -> None:
    """Set what is not set: whoever sets a variable themselves has the last word."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
