"""From settings to a running engine: files, vocabularies, memory, drafters."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from paceline.config.drafter_names import MIXED, SUFFIX, mixed_with, role_of
from paceline.config.engine import EngineSettings
from paceline.config.settings import load_settings
from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.interface import Drafter
from paceline.drafters.mixed import MixedDrafter
from paceline.drafters.model import MOST_CATCH_UP, PREFILL_CHUNK, ModelDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.calibration import Progress, step_costs
from paceline.engine.engine import Engine
from paceline.engine.history import KeptHistory, history_store
from paceline.engine.memory import ModelRole, allocate_kv, check_weights_fit
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import ConfigError
from paceline.kernels.native import use_instruction_set
from paceline.kernels.threads import set_num_threads
from paceline.models.chat_template import ChatTemplate
from paceline.models.devices import free_memory
from paceline.models.download import resolve
from paceline.models.interface import CausalModel
from paceline.models.load import LoadedModel, load_model, pick_device, weight_bytes
from paceline.models.options import Kernels, LoadOptions, Weights
from paceline.models.pages import release_free_memory
from paceline.models.tokenizer import Tokenizer
from paceline.models.vocabulary import check_same_vocabulary
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.routes import RouteTable

log = logging.getLogger(__name__)

ANSWER_STORE_SCOPES = 8
"""Full stores of earlier answers that fit; beyond, scopes fed longest ago lose their oldest answers."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine with what turns text into its tokens."""

    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    target_name: str
    draft_names: Mapping[str, str] = field(default_factory=dict)
    """Of the draft models, by what their drafters are called."""


def load_engine(
    settings: EngineSettings,
    on_progress: Progress = lambda share, text: None,
    *,
    replica: int | None = None,
) -> LoadedEngine:
    """Load the models, share the KV memory out, put the drafters in place and measure what steps cost.

    Args:
        settings: what to load.
        on_progress: told while step costs are measured, which is where a policy needs them.
        replica: number among several engines of these settings, each of which keeps a history of its own.

    Raises:
        ModelError, DownloadError: a model's files cannot be had or used.
        CapacityError: the memory does not hold a single useful sequence.
    """
    target, drafts = load_models(settings)
    device = pick_device(settings.device)
    policy = _policy(settings, target, drafts, on_progress) if settings.is_adaptive else None
    memory, *draft_memories = allocate_kv(
        [_target_role(settings, target), *(_draft_role(settings, *draft) for draft in drafts.items())],
        settings,
        settings.context_length or target.context_length,
        device,
        lambda: free_memory(device),
    )
    suffix = SuffixDrafter(answers=_answer_store(settings))
    drafters: dict[str, Drafter] = {SUFFIX: suffix}
    for (name, draft), draft_memory in zip(drafts.items(), draft_memories, strict=True):
        drafters[name] = ModelDrafter(
            draft.model,
            draft_memory,
            end_token_ids=target.tokenizer.eos_ids,
            reload=functools.partial(_reload, settings, name),
            name=name,
        )
        mix = mixed_with(name) or MIXED
        drafters[mix] = MixedDrafter(suffix, drafters[name], name=mix)
    engine = Engine(
        target.model,
        target.tokenizer,
        drafters,
        memory=memory,
        context_length=settings.context_length,
        limits=SchedulerLimits(
            settings.max_num_seqs,
            settings.max_num_batched_tokens,
            settings.prefill_chunk,
            settings.mixed_prefill_ratio,
            settings.max_overtaking_s,
            settings.joint_start_s,
        ),
        answer_sharing=settings.answer_sharing,
        policy=policy,
    )
    if settings.acceptance_history and policy is not None:
        engine.observers.add(KeptHistory(policy, history_store(target, drafts, settings, replica)))
    release_free_memory()
    names = {name: draft.name for name, draft in drafts.items()}
    return LoadedEngine(engine, target.tokenizer, target.chat_template, target.name, names)


def load_models(settings: EngineSettings) -> tuple[LoadedModel, dict[str, LoadedModel]]:
    """Load the target, and the draft models, by what their drafters are called, if the drafter needs any; set
    the threads that compute.

    Raises:
        ModelError, DownloadError: a model's files cannot be had or used.
    """
    set_num_threads(settings.threads)
    use_instruction_set(load_settings().isa)
    _check_memory(settings, pick_device(settings.device))
    target = load_model(resolve(settings.target), settings.device, target_options(settings))
    _check_context(settings, target)
    return target, _load_drafts(settings, target)


def _policy(
    settings: EngineSettings, target: LoadedModel, drafts: Mapping[str, LoadedModel], on_progress: Progress
) -> SpeculationPolicy:
    """Return the policy with its routes and what steps cost; measured before KV memory is shared out."""
    routes = RouteTable(
        settings.routes, settings.default_route, any_label=None if settings.routes else settings.open_route
    )
    has_costs = settings.calibration != "off"
    costs = step_costs(target, drafts, settings, on_progress) if has_costs else None
    return SpeculationPolicy(routes, costs, log_path=settings.decision_log)


def target_options(settings: EngineSettings) -> LoadOptions:
    """Return how the target is to be held."""
    return LoadOptions(Kernels(settings.kernels), Weights(settings.weights))


def draft_options(settings: EngineSettings) -> LoadOptions:
    """Return how the draft model is to be held."""
    is_from_file = settings.draft_weights == "file"
    return LoadOptions(
        Kernels(settings.kernels),
        Weights(settings.weights) if is_from_file else Weights.INT4,
        needs_weights=settings.draft_weights != "auto",
        reduce_vocabulary=settings.draft_vocab == "auto",
    )


def _answer_store(settings: EngineSettings) -> AnswerStore | None:
    size = settings.answer_store_tokens
    return AnswerStore(size, size * ANSWER_STORE_SCOPES) if size else None


def _check_context(settings: EngineSettings, target: LoadedModel) -> None:
    if settings.context_length is not None and settings.context_length > target.context_length:
        raise ConfigError(
            given=f"context_length = {settings.context_length}",
            expected=f"at most {target.context_length}, what {target.name} was made for",
            remedy="Lower context_length (--context-length), or leave it out",
        )


def _load_drafts(settings: EngineSettings, target: LoadedModel) -> dict[str, LoadedModel]:
    if not settings.uses_draft_models:
        for model in settings.draft_models.values():
            log.warning("the draft model %s is not loaded: the drafter is %s", model, settings.drafter)
        return {}
    drafts = {}
    for name in settings.draft_models:
        drafts[name] = _load_draft(settings, name)
        check_same_vocabulary(target.tokenizer, drafts[name].tokenizer)
    return drafts


def _load_draft(settings: EngineSettings, name: str) -> LoadedModel:
    return load_model(resolve(settings.draft_models[name]), settings.device, draft_options(settings))


def _reload(settings: EngineSettings, name: str) -> CausalModel:
    return _load_draft(settings, name).model


def _target_role(settings: EngineSettings, target: LoadedModel) -> ModelRole:
    most = settings.max_num_batched_tokens
    return ModelRole("target", target.model, most, most)


def _draft_role(settings: EngineSettings, name: str, draft: LoadedModel) -> ModelRole:
    most = PREFILL_CHUNK + settings.max_num_seqs * MOST_CATCH_UP
    return ModelRole(role_of(name), draft.model, most, settings.max_num_seqs)


def _check_memory(settings: EngineSettings, device: torch.device) -> None:
    names = {"target": settings.target}
    if settings.uses_draft_models:
        names |= {role_of(name): model for name, model in settings.draft_models.items()}
    sizes = {f"the {role} {name}": weight_bytes(resolve(name)) for role, name in names.items()}
    check_weights_fit(sizes, lambda: free_memory(device))
