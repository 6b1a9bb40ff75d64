"""vLLM's schedulers with no model behind them: a runner of paper answers, one step late if it is asked to."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from paceline.config.routes import RouteSettings
from paceline.vllm.bridge import Bridge
from paceline.vllm.routes_file import RouteEntry, RoutesFile, write_routes

BLOCK = 16


def put(folder: Path, version: int, routes: Mapping[str, RouteSettings]) -> None:
    entries = {name: RouteEntry(settings, "ann") for name, settings in routes.items()}
    write_routes(Bridge(folder).routes_path, RoutesFile(version, next(iter(entries)), entries))


class Stubbed:
    """A scheduler, and a runner that accepts so many of a request's drafts.

    Args:
        model: folder of any model: only its configuration is read.
        folder: of the bridge; none starts without one.
        routes: settings by name.
        is_async: which of the two ways of scheduling.
        num_blocks: of KV.
        accepts: (request id, drafts) -> accepted.
    """

    def __init__(
        self,
        model: Path,
        folder: Path | None,
        routes: Mapping[str, RouteSettings],
        *,
        is_async: bool,
        num_blocks: int = 1000,
        accepts: Callable[[str, int], int] = lambda name, n: n // 2,
    ) -> None:
        if folder is not None:
            put(folder, 1, routes)
        config = EngineArgs(
            model=str(model), max_model_len=512, max_num_seqs=16, block_size=BLOCK, enforce_eager=True,
            scheduler_cls="paceline.vllm.RouteScheduler", max_num_batched_tokens=64, watermark=0.0,
            additional_config={} if folder is None else {"paceline": {"bridge": str(folder)}},
            speculative_config={"method": "draft_model", "model": str(model), "num_speculative_tokens": 4},
        ).create_engine_config()  # fmt: skip
        # The CPU platform turns it off; the scheduler does not know of platforms.
        config.scheduler_config.async_scheduling = is_async
        self.is_async = is_async
        self._accepts = accepts
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        cache = KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        config.cache_config.num_gpu_blocks = num_blocks
        self.scheduler: Any = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config, kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config), block_size=BLOCK, log_stats=True,
        )  # fmt: skip
        self.verified: dict[str, list[int]] = defaultdict(list)
        """Drafts of each request, in each of its steps that decoded."""
        self.depths: list[int] = []
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self._in_flight: deque[tuple[Any, ModelRunnerOutput]] = deque()

    def add(self, name: str, route: str, *, num_prompt: int = 20, max_tokens: int = 30) -> None:
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, extra_args={"paceline_route": route}
        )
        params.update_from_generation_config({}, eos_token_id=2)
        prompt = [100 + (hash((name, place)) % 1000) for place in range(num_prompt)]
        self.scheduler.add_request(Request(name, prompt, params, None, block_hasher=self._hasher))

    def abort(self, *names: str) -> None:
        self.scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED)

    def step(self) -> None:
        """Schedule a step; take in the outcome of it, or of the one before."""
        output = self.scheduler.schedule()
        if output.total_num_scheduled_tokens:
            self.depths.append(output.num_spec_tokens_to_schedule)
            self._in_flight.append((output, self._run(output)))
        if self._in_flight and (
            len(self._in_flight) > self.is_async or not output.total_num_scheduled_tokens
        ):
            self._take_in()

    def _take_in(self) -> None:
        output, outcome = self._in_flight.popleft()
        for core_outputs in self.scheduler.update_from_output(output, outcome).values():
            for one in core_outputs.outputs:
                self.tokens[one.request_id] += one.new_token_ids
        if not self.is_async:
            names = list(output.num_scheduled_tokens)
            drafts = [[7] * output.num_spec_tokens_to_schedule for _ in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def _run(self, output: Any) -> ModelRunnerOutput:
        names = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for name in names:
            request = self.scheduler.requests[name]
            if request.is_prefill_chunk:
                sampled.append([])
                continue
            num_drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            self.verified[name].append(num_drafts)
            sampled.append([7] * (self._accepts(name, num_drafts) + 1))
        return ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=sampled,
        )  # fmt: skip

    def drain(self, most: int = 2000) -> None:
        """Step until all requests are over."""
        for _ in range(most):
            if not self.scheduler.has_unfinished_requests() and not self._in_flight:
                return
            self.step()
        raise AssertionError(f"not done after {most} steps: {list(self.scheduler.requests)}")
