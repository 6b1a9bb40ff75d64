"""vLLM's schedulers with routes: each request's drafts are cut to what the policy gives its route.

Two places decide what vLLM verifies, and both are taken here: where drafts come back from the workers
(`update_draft_token_ids`, scheduling synchronously), and where places are reserved for drafts that are not
known yet (`_update_after_schedule`, scheduling asynchronously). In the latter the workers are told, too, how
many tokens to draft at all. The rest is vLLM's own; `paceline.vllm.seam` names all of it that is relied on.
"""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import vllm
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from paceline.clock import monotonic
from paceline.records import FinishReason
from paceline.vllm.bridge import BridgeOptions
from paceline.vllm.core import RouteCore
from paceline.vllm.facts import FULL_LENGTH, EngineFacts
from paceline.vllm.questions import spare_questions
from paceline.vllm.recording import Step
from paceline.vllm.steps import Candidate, Load, Outcome, ScheduledPart

logger = init_logger("vllm.paceline")

SKIPS = "paceline_skips_drafting"
"""Attribute of a `SchedulerOutput` by which `RouteWorker` is told to leave the drafter out."""
WORKER = "paceline.vllm.RouteWorker"
NGRAM = "ngram"

_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_REPETITION: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_IGNORED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}


class RouteScheduling:
    """What both schedulers have in common, above one of vLLM's own."""

    # Of vLLM's scheduler.
    vllm_config: Any
    scheduler_config: Any
    requests: dict[str, Any]
    kv_cache_manager: Any
    num_spec_tokens: int
    dynamic_sd_lookup: list[int] | None
    max_model_len: int
    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = BridgeOptions.of(self.vllm_config.additional_config)
        facts = engine_facts(self.vllm_config, skips=options.skips_drafting)
        if self.dynamic_sd_lookup is None and self.num_spec_tokens:
            # As with vLLM's own dynamic draft lengths: without it, a request that resumes is given places for
            # drafts that nobody made, whatever its route says.
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)
        self._routes = RouteCore(options, facts)
        self._in_flight: deque[tuple[Any, Step]] = deque()
        self._began_at = monotonic()
        self._is_updating = False
        self._was_short = False
        self.makes_no_drafts = False
        """Whether the step that was scheduled last leaves the drafter out, so that no drafts come of it."""
        logger.info(
            "routes: %s; drafter: %s (%s, at most %d); bridge: %s",
            ", ".join(self._routes.driver.policy.routes.names), facts.drafter, facts.method,
            facts.max_draft_length, options.folder,
        )  # fmt: skip

    def add_request(self, request: Any) -> None:
        """Queue a request, and read its route."""
        is_known = request.request_id in self.requests
        super().add_request(request)  # type: ignore[misc]
        if not is_known:
            extra_args = None if request.sampling_params is None else request.sampling_params.extra_args
            self._routes.add(request.request_id, extra_args, request.num_prompt_tokens)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule a step, by the routes that are in force now."""
        self._began_at = monotonic()
        self._was_short = False
        self._routes.follow_routes()
        return super().schedule(*args, **kwargs)  # type: ignore[misc]

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]
        if not scheduler_output.num_scheduled_tokens:
            return
        parts, candidates, num_prompt_rows = self._read_schedule(scheduler_output)
        most, load = scheduler_output.num_spec_tokens_to_schedule, self._load(num_prompt_rows)
        step, drafts = self._routes.begin(parts, candidates, load, self._began_at, most)
        scheduler_output.num_spec_tokens_to_schedule = drafts.depth
        self.makes_no_drafts = drafts.skips
        if drafts.skips:
            setattr(scheduler_output, SKIPS, True)
        if step is not None:
            self._in_flight.append((scheduler_output, step))
        self._reserve(candidates)

    def _reserve(self, candidates: list[Candidate]) -> None:
        """Reserve places for drafts that are not known yet, where this scheduler does so."""

    def _read_schedule(self, scheduler_output: Any) -> tuple[list[ScheduledPart], list[Candidate], int]:
        """Return the parts of a step, who can draft after it, and rows of prompts that are left."""
        parts: list[ScheduledPart] = []
        candidates: list[Candidate] = []
        num_prompt_rows = 0
        drafts = scheduler_output.scheduled_spec_decode_tokens
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            num_drafted = len(drafts.get(request_id, ()))
            num_output = request.num_output_tokens
            is_chunk = request.is_prefill_chunk
            # vLLM has added this step's own places to the placeholders by now.
            has_output = num_output > 0 or request.num_output_placeholders > 1 + num_drafted
            num_before = request.num_computed_tokens - num_tokens
            num_known = num_tokens - num_drafted
            parts.append(ScheduledPart(request_id, num_before, num_known, num_drafted, has_output))
            if is_chunk:
                num_prompt_rows += max(0, request.num_tokens - request.num_computed_tokens)
                continue
            length = request.num_tokens
            room = min(request.max_tokens - num_output, self.max_model_len - length) - 2
            candidates.append(Candidate(request_id, length + 1, num_output + 1, max(0, room)))
        return parts, candidates, min(num_prompt_rows, self.max_num_scheduled_tokens)

    def _load(self, num_prompt_rows: int) -> Load:
        pool = self.kv_cache_manager.block_pool
        num_running, num_waiting = self.get_request_counts()  # type: ignore[attr-defined]
        num_used = pool.num_gpu_blocks - pool.get_num_free_blocks()
        return Load(num_running, num_waiting, pool.num_gpu_blocks, num_used, num_prompt_rows, self._was_short)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take the tokens of a step, and count what came of its drafts."""
        told_at = monotonic()
        step = self._take_step(scheduler_output)
        if step is None:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        before = self._before(scheduler_output, model_runner_output)
        with self._updating():
            outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        drafts, invalid = (
            scheduler_output.scheduled_spec_decode_tokens,
            scheduler_output.num_invalid_spec_tokens,
        )
        outcomes: dict[str, Outcome] = {}
        for request_id, (request, num_output, num_sampled) in before.items():
            num_new = request.num_output_tokens - num_output
            num_drafted = len(drafts.get(request_id, ())) - (invalid or {}).get(request_id, 0)
            outcomes[request_id] = Outcome(
                num_drafted if num_sampled else 0, min(max(0, num_sampled - 1), num_new), num_new,
                request.is_finished(),
            )  # fmt: skip
        self._routes.end(step, outcomes, told_at)
        return outputs

    def _take_step(self, scheduler_output: Any) -> Step | None:
        for index, (output, step) in enumerate(self._in_flight):
            if output is scheduler_output:
                del self._in_flight[index]
                return step
        return None

    def _before(self, scheduler_output: Any, output: Any) -> dict[str, tuple[Any, int, int]]:
        """Return each request whose tokens will count, its tokens so far, and how many come."""
        found = {}
        sampled, places = output.sampled_token_ids, output.req_id_to_index
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None or request.is_finished():
                continue
            if request.num_stale_output_tokens > 0 and request.drop_stale_output:
                continue
            num_sampled = len(sampled[places[request_id]]) if sampled else 0
            found[request_id] = (request, request.num_output_tokens, num_sampled)
        return found

    @contextmanager
    def _updating(self) -> Iterator[None]:
        self._is_updating = True
        try:
            yield
        finally:
            self._is_updating = False

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Take drafts that came from the workers, as many of each request's as its route may have."""
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]
        for request_id in draft_token_ids.req_ids:
            request = self.requests.get(request_id)
            if request is not None and request.spec_token_ids:
                length = self._routes.draft_length(request_id)
                if len(request.spec_token_ids) > length:
                    request.spec_token_ids = request.spec_token_ids[:length]

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        self._was_short = True
        self._routes.preempted(request.request_id)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        reason = _REASONS.get(request.status, FinishReason.ERROR)
        self._routes.finished(request.request_id, reason, is_in_step=self._is_updating)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def shutdown(self) -> None:
        """Stop, with what was learned on disk."""
        self._routes.close()
        super().shutdown()  # type: ignore[misc]


class SyncRouteScheduler(RouteScheduling, Scheduler):
    """vLLM's scheduler with routes, where each step is done before the next is scheduled."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        spare_questions()


class RouteScheduler(RouteScheduling, AsyncScheduler):
    """vLLM's scheduler with routes: what `--scheduler-cls paceline.vllm.RouteScheduler` names.

    Asynchronous as vLLM is by default; where vLLM was told, or had, to schedule synchronously, what is made
    is a `SyncRouteScheduler`."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the one of the two that fits vLLM's configuration."""
        config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
        if cls is RouteScheduler and not config.scheduler_config.async_scheduling:
            return SyncRouteScheduler(*args, **kwargs)
        return super().__new__(cls)

    def _reserve(self, candidates: list[Candidate]) -> None:
        for request_id, *_ in candidates:
            self.requests[request_id].spec_token_ids = [-1] * self._routes.draft_length(request_id)


def engine_facts(config: Any, *, skips: bool) -> EngineFacts:
    """Return what routes and policy have to know of vLLM's configuration.

    Args:
        config: vLLM's `VllmConfig`.
        skips: whether the drafter may be left out where nobody drafts.
    """
    speculation, parallel = config.speculative_config, config.parallel_config
    runs_model = speculation is not None and (speculation.use_eagle() or speculation.uses_draft_model())
    is_alone = parallel.data_parallel_size == 1
    method = None if speculation is None else speculation.method
    # A model with a recurrent state counts each step as one of drafts, or none: vLLM reads the state by that.
    model = config.model_config
    can_look_away = method == NGRAM and not (model.is_hybrid or model.has_inner_state)
    draft = getattr(getattr(speculation, "draft_model_config", None), "model", None) if runs_model else None
    return EngineFacts(
        rank=parallel.data_parallel_index,
        vllm_version=vllm.__version__,
        method=method,
        max_draft_length=config.num_speculative_tokens if speculation is not None else 0,
        is_async=bool(config.scheduler_config.async_scheduling),
        can_vary_depth=method not in FULL_LENGTH and (is_alone or not runs_model),
        can_skip=bool(
            skips and (runs_model or can_look_away) and is_alone
            and not config.use_v2_model_runner and parallel.worker_cls == WORKER
        ),
        parts={
            "model": f"{config.model_config.model} {config.model_config.dtype}",
            "drafter": "none" if speculation is None else f"{speculation.method} {draft}",
            "device": f"{current_platform.get_device_name()} {platform.machine()}",
            "workers": f"{parallel.tensor_parallel_size} x {parallel.pipeline_parallel_size}",
            "vllm": vllm.__version__,
        },
    )  # fmt: skip
