"""All of vLLM that is relied on here, by name, and what of it is not as it was.

vLLM's scheduler is no public interface: a release may change any of it. `seam_faults` compares the installed
release with what this was written against, and names each difference, so that a new release is met with a
list rather than with wrong counts. It compares signatures, fields of records, and the places in vLLM's own
code where a name is set or called.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from typing import NamedTuple

TESTED = ("0.32.0",)
"""Releases that this was run with."""


class Method(NamedTuple):
    """A method that is overridden, or called with these arguments."""

    owner: str
    name: str
    parameters: tuple[str, ...]


class Said(NamedTuple):
    """Text that the source of a class or function has: a name that is set, called or read there."""

    owner: str
    text: str
    why: str


class Fields(NamedTuple):
    """Fields of a record."""

    owner: str
    names: tuple[str, ...]


_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_ASYNC = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"
_CORE = "vllm.v1.engine.core:EngineCore"
_RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_PROPOSER = "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer"
_LOOK_UPS = "vllm.v1.spec_decode.ngram_proposer:NgramProposer"
_SERVE = "vllm.entrypoints.launchers.launcher:serve_http"
_REQUEST = "vllm.v1.request:Request"

METHODS = (
    Method(_SCHEDULER, "schedule", ("self", "throttle_prefills")),
    Method(_SCHEDULER, "_update_after_schedule", ("self", "scheduler_output")),
    Method(_ASYNC, "_update_after_schedule", ("self", "scheduler_output")),
    Method(_SCHEDULER, "update_from_output", ("self", "scheduler_output", "model_runner_output")),
    Method(_SCHEDULER, "update_draft_token_ids", ("self", "draft_token_ids")),
    Method(_SCHEDULER, "add_request", ("self", "request")),
    Method(_SCHEDULER, "_preempt_request", ("self", "request", "timestamp", "drop_stale_output")),
    Method(_SCHEDULER, "_free_request", ("self", "request", "delay_free_blocks")),
    Method(_SCHEDULER, "get_request_counts", ("self",)),
    Method(_SCHEDULER, "shutdown", ("self",)),
    Method("vllm.v1.core.block_pool:BlockPool", "get_num_free_blocks", ("self",)),
    Method("vllm.v1.worker.gpu_worker:Worker", "init_device", ("self",)),
    Method("vllm.v1.worker.gpu_worker:Worker", "execute_model", ("self", "scheduler_output")),
    Method(_CORE, "post_step", ("self", "model_executed")),
    Method(
        _LOOK_UPS,
        "propose",
        (
            "self",
            "num_speculative_tokens",
            "sampled_token_ids",
            "num_tokens_no_spec",
            "token_ids_cpu",
            "slot_mappings",
        ),
    ),
    Method("vllm.config.speculative:SpeculativeConfig", "use_eagle", ("self",)),
    Method("vllm.config.speculative:SpeculativeConfig", "uses_draft_model", ("self",)),
)

RECORDS = (
    Fields(
        "vllm.v1.core.sched.output:SchedulerOutput",
        ("num_scheduled_tokens", "scheduled_spec_decode_tokens", "num_invalid_spec_tokens",
         "num_spec_tokens_to_schedule"),
    ),
    Fields("vllm.v1.outputs:ModelRunnerOutput", ("sampled_token_ids", "req_id_to_index")),
    Fields("vllm.v1.outputs:DraftTokenIds", ("req_ids", "draft_token_ids")),
    Fields("vllm.config:VllmConfig", ("additional_config", "speculative_config", "scheduler_config")),
    Fields("vllm.config:ParallelConfig", ("worker_cls", "data_parallel_size", "data_parallel_index",
                                          "tensor_parallel_size", "pipeline_parallel_size")),
    Fields("vllm.config:SchedulerConfig", ("async_scheduling", "max_num_seqs", "scheduler_cls")),
)  # fmt: skip

SAID = (
    Said(_SCHEDULER, "self.requests: dict[str, Request]", "requests by their ids"),
    Said(_SCHEDULER, "self.num_spec_tokens = vllm_config.num_speculative_tokens", "the most drafts"),
    Said(_SCHEDULER, "self.max_model_len", "the end of the context"),
    Said(_SCHEDULER, "self.max_num_scheduled_tokens", "the rows of a step"),
    Said(_SCHEDULER, "self.kv_cache_manager = KVCacheManager(", "who knows the blocks"),
    Said(f"{_SCHEDULER}.schedule", "self.dynamic_sd_lookup is None", "no places for drafts nobody made"),
    Said(f"{_SCHEDULER}.schedule", "self.dynamic_sd_lookup[", "the most drafts at this batch"),
    Said(f"{_SCHEDULER}.schedule", "self._update_after_schedule(", "where steps are planned"),
    Said(f"{_SCHEDULER}.schedule", "spec_token_ids = request.spec_token_ids", "what is verified"),
    Said(f"{_SCHEDULER}.update_draft_token_ids", "request.spec_token_ids =", "where drafts come back"),
    Said(f"{_ASYNC}._update_after_schedule", "request.spec_token_ids =", "where places are reserved"),
    Said(f"{_ASYNC}._update_after_schedule", "request.num_output_placeholders +=", "tokens on their way"),
    Said(f"{_SCHEDULER}.update_from_output", "self._free_request(request)", "where answers end"),
    Said(f"{_SCHEDULER}.finish_requests", "self._free_request(", "where requests are given up"),
    Said(f"{_SCHEDULER}.update_from_output", "request.drop_stale_output", "tokens that do not count"),
    Said(_CORE, "self.scheduler.update_draft_token_ids(draft_token_ids)", "who hands drafts back"),
    Said(_CORE, "self.scheduler.update_from_output(", "who hands tokens back"),
    Said(_CORE, "scheduler_config.get_scheduler_cls()", "who makes the scheduler"),
    Said(f"{_RUNNER}.propose_draft_token_ids", "scheduler_output.num_spec_tokens_to_schedule",
         "how many tokens workers draft"),
    Said(f"{_PROPOSER}.propose", "if self.num_speculative_tokens == 0:", "drafting none"),
    Said(f"{_RUNNER}.propose_draft_token_ids", "self.drafter.propose(", "what RouteWorker replaces"),
    Said(f"{_RUNNER}.propose_draft_token_ids", "next_token_ids=next_token_ids", "whose length it reads"),
    Said(f"{_CORE}.post_step", "self.model_executor.take_draft_token_ids()", "what is not asked"),
    Said(f"{_CORE}.__init__", "self.batch_queue: (", "whether steps overlap"),
    Said(f"{_RUNNER}._prepare_inputs", "use_spec_decode = self.speculative_config is not None",
         "a step as without speculation"),
    Said(f"{_RUNNER}.execute_model", "use_spec_decode = self.speculative_config is not None", "the same"),
    Said(f"{_RUNNER}.sample_tokens", "spec_config = self.speculative_config", "the same, and no look-up"),
    Said(f"{_RUNNER}._sample", "if spec_decode_metadata is None:", "the plain sampler"),
    Said(f"{_RUNNER}._bookkeeping_sync", "self.input_batch.token_ids_cpu[req_idx, start_idx:end_idx] =",
         "what is looked into, kept in each step"),
    Said(f"{_LOOK_UPS}.__init__", "[[]] * 1024,", "a warm-up that looks nothing up"),
    Said(f"{_LOOK_UPS}.__init__", "self.k =", "its longest drafts"),
    Said(f"{_LOOK_UPS}.__init__", "self.max_model_len =", "the width of what it looks into"),
    Said("vllm.config:ModelConfig", "def is_hybrid", "a model with a recurrent state"),
    Said(_REQUEST, "self.spec_token_ids", "a request's drafts"),
    Said(_REQUEST, "self.is_prefill_chunk", "whether more of its prompt is to come"),
    Said(_REQUEST, "self.num_stale_output_tokens", "tokens of before a preemption"),
    Said(_REQUEST, "self.num_computed_tokens", "how far it is computed"),
    Said(_REQUEST, "def num_output_tokens", "tokens of its answer"),
    Said(_SERVE, "app.state.server = server", "uvicorn's server"),
    Said(_SERVE, "server.should_exit = True", "said when the engine has stopped"),
    Said(_SERVE, "engine_client.shutdown", "what stops the engine"),
    Said("vllm.sampling_params:SamplingParams", "extra_args:", "where a request names its route"),
)  # fmt: skip


def seam_faults() -> list[str]:
    """Return what of the installed vLLM is not as it was, one line each, by name; empty where all is.

    Raises:
        ImportError: vLLM is not installed.
    """
    importlib.import_module("vllm")
    return [*_method_faults(METHODS), *_record_faults(RECORDS), *_source_faults(SAID)]


def _find(owner: str) -> object:
    module, _, names = owner.partition(":")
    found: object = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def _found(owner: str) -> object | str:
    try:
        return _find(owner)
    except (ImportError, AttributeError) as error:
        return f"{owner} is gone ({error})"


def _method_faults(methods: tuple[Method, ...]) -> Iterator[str]:
    for method in methods:
        found = _found(f"{method.owner}.{method.name}")
        if isinstance(found, str):
            yield found
            continue
        names = tuple(inspect.signature(found).parameters)  # type: ignore[arg-type]
        if names != method.parameters:
            yield f"{method.owner}.{method.name}{names} took {method.parameters}"


def _record_faults(records: tuple[Fields, ...]) -> Iterator[str]:
    for record in records:
        found = _found(record.owner)
        if isinstance(found, str):
            yield found
            continue
        known = {field.name for field in dataclasses.fields(found)}  # type: ignore[arg-type]
        yield from (f"{record.owner} has no field {name}" for name in record.names if name not in known)


def _source_faults(said: tuple[Said, ...]) -> Iterator[str]:
    for one in said:
        found = _found(one.owner)
        if isinstance(found, str):
            yield found
        elif one.text not in inspect.getsource(found):  # type: ignore[arg-type]
            yield f"{one.owner} no longer says {one.text!r} ({one.why})"
