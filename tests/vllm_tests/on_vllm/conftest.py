"""What vLLM has to be told before anything imports it, and the model that it serves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "0-1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def model() -> Path:
    """The folder of a small model, made from its preset where it is not there yet."""
    from benchmarks.as_safetensors import as_safetensors

    return as_safetensors(MODEL)
