"""Tests of real clusters are those of `make test-ray`, whose environment has Ray; all others run anywhere."""

from __future__ import annotations

import importlib.metadata

try:
    importlib.metadata.version("ray")
    HAS_RAY = True
except importlib.metadata.PackageNotFoundError:
    HAS_RAY = False

collect_ignore_glob = [] if HAS_RAY else ["test_cluster*.py"]
