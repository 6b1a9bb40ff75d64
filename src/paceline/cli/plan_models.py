"""Models for `paceline plan`: from numbers alone, or from files, as the embedded engine would hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigError
from paceline.planner.memory import ModelMemory, kv_bytes_per_token
from paceline.planner.shapes import BYTES_OF, Shape, nearest_shape

if TYPE_CHECKING:
    from paceline.config.engine import EngineSettings
    from paceline.models.footprint import Footprint
    from paceline.models.kv_arena import PagePlan

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model, and in words where its figures are from."""

    memory: ModelMemory
    what: str
    shape: str
    vocab_size: int
    bytes_per_param: float | None = None


@dataclass(frozen=True, slots=True)
class PlannedModels:
    """What is to be held."""

    target: PlannedModel
    draft: PlannedModel | None
    context: int
    sequences: int | None
    process_bytes: float = 0.0
    own_kv_bytes: float | None = None
    """What the embedded engine would set aside for KV by itself."""


def from_numbers(options: Mapping[str, Any]) -> PlannedModels:
    """Return models of so many parameters. What a shape lacks is that of a known model of about that size.

    Raises:
        ConfigError: a figure is missing or not positive.
    """
    if options["params_b"] is None:
        raise ConfigError(
            given="neither --target nor --params-b",
            expected="model files, or a number of parameters",
            remedy="Give --target FILE, or --params-b 7 for 7 thousand million parameters",
        )
    draft = None
    if options["draft_params_b"] is not None:
        dtype = options["draft_dtype"] or options["dtype"]
        draft = _of_numbers(options["draft_params_b"], dtype, options, "draft_")
    elif any(options[f"draft_{name}"] is not None for name in ("layers", "kv_heads", "head_size", "dtype")):
        raise ConfigError(
            given="figures of a draft model without its size",
            expected="--draft-params-b beside them",
            remedy="Give --draft-params-b, or leave the draft model's other figures out",
        )
    target = _of_numbers(options["params_b"], options["dtype"], options, "")
    return PlannedModels(target, draft, options["context"] or DEFAULT_CONTEXT, options["sequences"])


def _of_numbers(params_b: float, dtype: str, options: Mapping[str, Any], prefix: str) -> PlannedModel:
    known = nearest_shape(params_b)
    given = {name: options[prefix + name] for name in ("layers", "kv_heads", "head_size")}
    layers = given["layers"] or known.num_layers
    kv_heads = given["kv_heads"] or known.num_kv_heads
    head_size = given["head_size"] or known.head_size
    kv = kv_bytes_per_token(layers, kv_heads, head_size, BYTES_OF[options["kv_dtype"]])
    return PlannedModel(
        ModelMemory(params_b * 1e9 * BYTES_OF[dtype], kv),
        f"{params_b:g}B parameters in {dtype}",
        f"{layers} layers, {kv_heads} KV heads of {head_size}{_assumed(given, known)}",
        known.vocab_size,
        BYTES_OF[dtype],
    )


def _assumed(given: Mapping[str, int | None], known: Shape) -> str:
    if all(value is not None for value in given.values()):
        return ""
    what = "all" if not any(given.values()) else "what was not given"
    return f" ({what} assumed: {known.name}'s)"


def from_files(options: Mapping[str, Any]) -> PlannedModels:
    """Return what the embedded engine would hold of model files on this machine; no weight is read.

    Raises:
        ConfigError: context or sequences are more than the models or the engine's settings allow.
        ModelError, DownloadError: a file cannot be had or used.
    """
    # Imported late: they bring PyTorch, seconds that plans from numbers do without; and they are what the
    # engine's process will hold beside the models.
    from paceline.drafters.model import MOST_CATCH_UP, PREFILL_CHUNK
    from paceline.engine.loading import draft_options, target_options
    from paceline.models.download import resolve
    from paceline.models.footprint import footprint
    from paceline.models.kv_arena import plan_pages
    from paceline.models.vocabulary import check_same_vocabulary

    settings = _settings(options)
    target = footprint(resolve(settings.target), target_options(settings))
    draft = footprint(resolve(settings.draft), draft_options(settings)) if settings.draft else None
    if draft is not None:
        check_same_vocabulary(target.tokenizer, draft.tokenizer)
    if (options["context"] or 0) > target.context_length:
        raise ConfigError(
            given=f"--context {options['context']}",
            expected=f"at most {target.context_length}, what {target.name} was made for",
            remedy="Lower --context",
        )
    context = options["context"] or min(DEFAULT_CONTEXT, target.context_length)
    sequences = settings.max_num_seqs
    pages = plan_pages([target.kv, *([draft.kv] if draft else [])], settings.block_size)
    draft_rows = PREFILL_CHUNK + sequences * MOST_CATCH_UP
    # A step's drafts are judged with their logits, and a prompt's last row.
    rows, logits = settings.max_num_batched_tokens, sequences * (options["k"] + 1)
    process = resident_bytes()
    return PlannedModels(
        _of_file(target, pages, 0, target.workspace(rows, logits, context)),
        _of_file(draft, pages, 1, draft.workspace(draft_rows, sequences, context)) if draft else None,
        context,
        sequences,
        process,
        _own_kv(options["memory_bytes"] - process, settings, pages, (target, draft), draft_rows),
    )


def _settings(options: Mapping[str, Any]) -> EngineSettings:
    from paceline.config.engine import EngineSettings

    fields = EngineSettings.model_fields
    sequences = options["sequences"] or fields["max_num_seqs"].default
    return EngineSettings(
        target=options["target"],
        draft=options["draft"],
        max_num_seqs=sequences,
        max_num_batched_tokens=max(fields["max_num_batched_tokens"].default, sequences),
        context_length=options["context"],
        draft_weights=options["draft_weights"],
        draft_vocab=options["draft_vocab"],
    )


def _of_file(model: Footprint, pages: PagePlan, number: int, workspace: int) -> PlannedModel:
    size = pages.block_sizes[number]
    held = "native kernels" if model.is_native else "float32 reference"
    return PlannedModel(
        ModelMemory(model.weight_bytes, model.kv.bytes_per_token, size, pages.page_bytes, workspace),
        f"{model.name}: {model.num_parameters / 1e6:,.0f} million parameters, {held}",
        f"blocks of {size} positions, {pages.page_bytes:,} bytes each",
        model.vocab_size,
    )


def _own_kv(
    room: float, settings: EngineSettings, pages: PagePlan, models: tuple[Footprint, Footprint | None],
    draft_rows: int,
) -> float:  # fmt: skip
    """Return the KV memory that the engine would set aside by itself; see `engine.memory.allocate_kv`."""
    from paceline.engine.memory import KV_SHARE

    target, draft = models
    context = settings.context_length or target.context_length
    rows = settings.max_num_batched_tokens
    room -= target.weight_bytes + target.workspace(rows, rows, context)
    if draft is not None:
        room -= draft.weight_bytes + draft.workspace(draft_rows, settings.max_num_seqs, context)
    useful = settings.max_num_seqs * sum(-(-context // size) for size in pages.block_sizes)
    return min(max(0.0, room * KV_SHARE), useful * pages.page_bytes)


def resident_bytes(proc: Path = Path("/proc")) -> int:
    """Return what this process holds now (VmRSS).

    Raises:
        ConfigError: the system does not say.
    """
    try:
        lines = (proc / "self" / "status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
    except (OSError, StopIteration, ValueError):
        raise ConfigError(
            given=f"{proc}/self/status, which does not say what a process holds",
            expected="a Linux system",
            remedy="Plan from numbers (--params-b), or on Linux",
        ) from None
