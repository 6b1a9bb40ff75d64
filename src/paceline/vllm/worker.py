"""vLLM's worker, that can leave the drafter out of a step in which nobody drafts.

*A draft model.* Told to draft no token, vLLM runs the drafter's first pass all the same, so that its KV
follows the target's. The scheduler says when that serves nobody (`paceline.vllm.upkeep`), and remembers whose
KV has holes from then on.

*Look-ups of n-grams.* They keep nothing from step to step, so a step that neither verifies drafts nor makes
any is run as vLLM runs it without speculation: with its plain sampler, and no look-up.

The answers cannot change by either, since the target verifies every draft.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.platforms import current_platform
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from paceline.vllm.scheduler import NGRAM, SKIPS

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
elif current_platform.is_xpu():
    from vllm.v1.worker.xpu_worker import XPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class RouteWorker(Worker):
    """The platform's own worker, for `--worker-cls paceline.vllm.RouteWorker`."""

    _skips = False
    _looks_up = False

    def init_device(self) -> None:
        """Make the device ready, and the drafter one that can be told to stay idle."""
        self._looks_up = self.speculative_config is not None and self.speculative_config.method == NGRAM
        if self._looks_up and current_platform.is_cpu():
            keep_threads()
        super().init_device()
        drafter = getattr(self.model_runner, "drafter", None)
        if isinstance(drafter, SpecDecodeBaseProposer):
            self._propose = drafter.propose
            drafter.propose = self._propose_unless_skipped
        elif self._looks_up and drafter is not None:  # there is none on the first ranks of a pipeline
            compile_look_ups(drafter)

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step, and note whether anybody is to be drafted for."""
        self._skips = bool(getattr(scheduler_output, SKIPS, False))
        if self._looks_up:
            is_plain = self._skips and not scheduler_output.scheduled_spec_decode_tokens
            self.model_runner.speculative_config = None if is_plain else self.speculative_config
        return super().execute_model(scheduler_output, *args, **kwargs)

    def _propose_unless_skipped(self, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Return no drafts [num_requests, 0], without any pass, where the scheduler said so."""
        if not self._skips or num_speculative_tokens:
            return self._propose(num_speculative_tokens, *args, **kwargs)
        next_token_ids = kwargs["next_token_ids"]
        return torch.empty(len(next_token_ids), 0, device=next_token_ids.device, dtype=torch.int64)


def keep_threads() -> None:
    """Have look-ups run on threads of their own, where the model runs on this process's OpenMP threads.

    Otherwise numba takes OpenMP for its loops, too, and sets its number of threads to the CPUs of the calling
    thread. vLLM binds that thread to one, so that after the first look-up the model itself would run on one
    thread for good. Whoever named a layer (`NUMBA_THREADING_LAYER`) keeps it. This one is for one engine at a
    time in a process, as vLLM's workers are."""
    import numba

    if numba.config.THREADING_LAYER == "default":
        numba.config.THREADING_LAYER = "workqueue"


def compile_look_ups(drafter: Any) -> None:
    """Look something up, so that numba compiles it now.

    vLLM's own warm-up has only requests without tokens, for which nothing is looked up. So the first step
    with tokens would compile, for seconds; and where every route was off before, that is in the middle of
    streams.

    Args:
        drafter: vLLM's `NgramProposer`.
    """
    token_ids = np.zeros((1, drafter.max_model_len), dtype=np.int32)
    drafter.propose(drafter.k, [[0]], np.array([2], dtype=np.int32), token_ids)
