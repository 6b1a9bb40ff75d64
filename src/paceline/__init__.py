"""Paceline: speculative decoding as a per-route, measured, reversible decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.parameters import StructuredOutput
from paceline.records import GenerationResult, SamplingParams, SpeculationParams, StreamChunk

if TYPE_CHECKING:
    from paceline.llm import LLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "GenerationResult",
    "SamplingParams",
    "SpeculationParams",
    "StreamChunk",
    "StructuredOutput",
    "__version__",
]


def __getattr__(name: str) -> object:
    """Load `LLM`, and PyTorch with it, only when somebody asks for it."""
    if name == "LLM":
        from paceline.llm import LLM

        return LLM
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
