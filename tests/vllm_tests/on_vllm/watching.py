"""What a worker does, told by itself: vLLM adds this to the worker's class (`worker_extension_cls`)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch


class Watching:
    """More methods of a worker, to be called with `LLM.collective_rpc`."""

    model_runner: Any
    watched: Counter[str]

    def watch(self) -> None:
        """Begin to count look-ups, samplings of each kind, and questions for drafts."""
        self.watched = Counter()
        runner = self.model_runner
        for owner, name, called in (
            (runner.drafter, "propose", "look-ups"),
            (runner, "take_draft_token_ids", "questions"),
            (runner, "execute_model", "steps"),
            (runner.rejection_sampler, "forward", "rejection sampling"),
        ):
            setattr(owner, name, self._counting(called, getattr(owner, name)))

    def seen(self) -> dict[str, int]:
        """Return the counts so far, the model's threads, and how often look-ups were compiled."""
        from vllm.v1.spec_decode.ngram_proposer import batch_propose_numba

        return {
            **self.watched,
            "threads": torch.get_num_threads(),
            "compiled": len(batch_propose_numba.signatures),
        }

    def _counting(self, called: str, method: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.watched[called] += 1
            return method(*args, **kwargs)

        return counted
