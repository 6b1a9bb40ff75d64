"""Spares vLLM's engine core to ask for drafts that nobody made.

Where it schedules synchronously it asks its workers after each step what they drafted, and waits for the
answer: a message there and one back. The scheduler knows that nothing comes of a step in which the drafter
was left out.
"""

from __future__ import annotations

import functools

from vllm.v1.engine.core import EngineCore

_post_step = EngineCore.post_step


def spare_questions() -> None:
    """Let the engine cores of this process ask only where their scheduler does not know the answer."""
    EngineCore.post_step = _ask_unless_known


# What it stands for can be seen behind it, so that `vllm.seam` compares vLLM's own.
@functools.wraps(_post_step)
def _ask_unless_known(self: EngineCore, model_executed: bool) -> None:
    # With pipeline parallelism the step that is over is not the one that was scheduled last.
    is_known = self.batch_queue is None and getattr(self.scheduler, "makes_no_drafts", False)
    if not is_known:
        _post_step(self, model_executed)
