"""From settings to a running engine: files, vocabularies, memory, drafters."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from paceline.config.engine import EngineSettings
from paceline.config.memory import available_memory
from paceline.config.settings import load_settings
from paceline.drafters.interface import Drafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.engine import Engine
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import CapacityError, ConfigError
from paceline.kernels.native import use_instruction_set
from paceline.kernels.threads import set_num_threads
from paceline.models.chat_template import ChatTemplate
from paceline.models.download import resolve
from paceline.models.interface import CausalModel
from paceline.models.load import LoadedModel, load_model
from paceline.models.options import Kernels, LoadOptions, Weights
from paceline.models.tokenizer import Tokenizer
from paceline.models.vocabulary import check_same_vocabulary

log = logging.getLogger(__name__)

KV_SHARE = 0.25
"""Share of the free memory that the KV caches take unless told otherwise."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine with what turns text into its tokens."""

    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    target_name: str
    draft_name: str | None


def load_engine(settings: EngineSettings) -> LoadedEngine:
    """Load the models, share the KV memory out and put the drafters in place.

    Raises:
        ModelError, DownloadError: a model's files cannot be had or used.
        CapacityError: the memory does not hold a single useful sequence.
    """
    set_num_threads(settings.threads)
    use_instruction_set(load_settings().isa)
    target = load_model(resolve(settings.target), settings.device, _target_options(settings))
    _check_context(settings, target)
    draft = _load_draft(settings, target)
    num_blocks = _num_blocks(settings, target.model, draft.model if draft else None)
    drafters: dict[str, Drafter] = {"suffix": SuffixDrafter()}
    if draft is not None:
        drafters["model"] = ModelDrafter(
            draft.model,
            num_blocks=num_blocks,
            block_size=settings.block_size,
            end_token_ids=target.tokenizer.eos_ids,
        )
    engine = Engine(
        target.model,
        target.tokenizer,
        drafters,
        num_blocks=num_blocks,
        block_size=settings.block_size,
        context_length=settings.context_length,
        limits=SchedulerLimits(
            settings.max_num_seqs, settings.max_num_batched_tokens, settings.prefill_chunk
        ),
    )
    return LoadedEngine(
        engine, target.tokenizer, target.chat_template, target.name, draft.name if draft else None
    )


def _target_options(settings: EngineSettings) -> LoadOptions:
    return LoadOptions(Kernels(settings.kernels), Weights(settings.weights))


def _draft_options(settings: EngineSettings) -> LoadOptions:
    is_from_file = settings.draft_weights == "file"
    return LoadOptions(
        Kernels(settings.kernels),
        Weights(settings.weights) if is_from_file else Weights.INT4,
        needs_weights=settings.draft_weights != "auto",
        reduce_vocabulary=settings.draft_vocab == "auto",
    )


def _check_context(settings: EngineSettings, target: LoadedModel) -> None:
    if settings.context_length is not None and settings.context_length > target.context_length:
        raise ConfigError(
            given=f"context_length = {settings.context_length}",
            expected=f"at most {target.context_length}, what {target.name} was made for",
            remedy="Lower context_length (--context-length), or leave it out",
        )


def _load_draft(settings: EngineSettings, target: LoadedModel) -> LoadedModel | None:
    if settings.draft is None:
        return None
    if settings.effective_drafter != "model":
        log.warning("the draft model %s is not loaded: the drafter is %s", settings.draft, settings.drafter)
        return None
    draft = load_model(resolve(settings.draft), settings.device, _draft_options(settings))
    check_same_vocabulary(target.tokenizer, draft.tokenizer)
    return draft


def _num_blocks(settings: EngineSettings, target: CausalModel, draft: CausalModel | None) -> int:
    """Return how many blocks each model gets: as many for the draft as for the target."""
    budget = settings.kv_memory if settings.kv_memory is not None else int(available_memory() * KV_SHARE)
    per_token = target.kv_bytes_per_token() + (draft.kv_bytes_per_token() if draft else 0)
    affordable = budget // (per_token * settings.block_size)
    context_length = settings.context_length or target.context_length
    useful = settings.max_num_seqs * -(-context_length // settings.block_size)
    needed = -(-(settings.context_length or 2) // settings.block_size)
    if affordable < needed:
        raise CapacityError(
            given=f"{budget:,} bytes for the KV cache, {per_token:,} for each token",
            expected=f"room for {settings.context_length or 2} tokens of one sequence",
            remedy="Raise kv_memory (--kv-memory) or lower context_length (--context-length)",
        )
    return min(affordable, useful)
