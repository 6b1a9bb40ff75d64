"""vLLM's worker, that can leave the drafter's pass out of a step in which nobody drafts.

Told to draft no token, vLLM runs the drafter's first pass all the same, so that its KV follows the target's.
The scheduler says when that serves nobody (`paceline.vllm.upkeep`), and remembers whose KV has holes from
then on; the answers cannot change by it, since the target verifies every draft.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from paceline.vllm.scheduler import SKIPS

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
elif current_platform.is_xpu():
    from vllm.v1.worker.xpu_worker import XPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class RouteWorker(Worker):
    """The platform's own worker, for `--worker-cls paceline.vllm.RouteWorker`."""

    _skips = False

    def init_device(self) -> None:
        """Make the device ready, and the drafter one that can be told to stay idle."""
        super().init_device()
        drafter = getattr(self.model_runner, "drafter", None)
        if isinstance(drafter, SpecDecodeBaseProposer):
            self._propose = drafter.propose
            drafter.propose = self._propose_unless_skipped

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step, and note whether anybody is to be drafted for."""
        self._skips = bool(getattr(scheduler_output, SKIPS, False))
        return super().execute_model(scheduler_output, *args, **kwargs)

    def _propose_unless_skipped(self, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> Any:
        """Return no drafts [num_requests, 0], without any pass, where the scheduler said so."""
        if not self._skips or num_speculative_tokens:
            return self._propose(num_speculative_tokens, *args, **kwargs)
        next_token_ids = kwargs["next_token_ids"]
        return torch.empty(len(next_token_ids), 0, device=next_token_ids.device, dtype=torch.int64)
