"""The engine's thread and the async streams that it feeds: the one border between sync and async code."""

from paceline.runtime.async_llm import AsyncLLM
from paceline.runtime.runtime import Runtime
from paceline.runtime.states import RuntimeState, ShutdownReport
from paceline.runtime.stream import AnswerStream

__all__ = ["AnswerStream", "AsyncLLM", "Runtime", "RuntimeState", "ShutdownReport"]
