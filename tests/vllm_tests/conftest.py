"""Tests on vLLM itself need its environment: `make test-vllm` has it, `make test` does not."""

from __future__ import annotations

import importlib.util

collect_ignore = [] if importlib.util.find_spec("vllm") else ["on_vllm"]
