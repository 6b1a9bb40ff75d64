"""Step costs of the loaded models, measured in a few seconds at start, or read from an earlier start."""

from __future__ import annotations

import functools
import hashlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.drafter_names import MODEL, role_of
from paceline.config.engine import EngineSettings
from paceline.config.paths import cache_dir
from paceline.kernels.native import native
from paceline.kernels.threads import num_threads
from paceline.models.decoder import Decoder
from paceline.models.interface import CausalModel, KVStore, SequenceSlice
from paceline.models.load import LoadedModel
from paceline.policy.cost_store import CostStore, cost_key
from paceline.policy.costs import CostCurve
from paceline.policy.step_costs import CalibratedCosts
from paceline.records import SamplingParams
from paceline.sampling.choice import choose_with_confidence
from paceline.sampling.state import SamplingState

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
DRAFT_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
SHARED_CONTEXT = 128
"""Positions that are really computed; longer contexts read them again."""
LONG_CONTEXT = 1024
BLOCK_SIZE = 16
NUM_TOGETHER = 4
MOST_ROUNDS = 5
MOST_SECONDS = 4.0
"""Of the target's rounds; the first two are made in any case."""
MOST_DRAFT_SECONDS = 1.5
HASHED_BYTES = 1 << 20

Progress = Callable[[float, str], None]
"""Told the share that is done, and of what."""


def step_costs(
    target: LoadedModel,
    drafts: Mapping[str, LoadedModel],
    settings: EngineSettings,
    on_progress: Progress = lambda share, text: None,
    store: CostStore | None = None,
) -> CalibratedCosts:
    """Return the step costs of these models on this machine, from an earlier start if there was one.

    Args:
        target: as it is loaded.
        drafts: the draft models, as they are loaded, by what their drafters are called.
        settings: `calibration` says whether to measure anew ("always"), and what else makes a difference.
        on_progress: told while it measures.
        store: where they are kept; the cache folder unless given.
    """
    store = store or CostStore(cache_dir() / "step-costs")
    description = describe(target, drafts, settings)
    key = cost_key(description)
    if settings.calibration == "auto" and (found := store.load(key)) is not None:
        return found
    target_curve = measure(target.model, ROWS, MOST_SECONDS, lambda share: on_progress(0.8 * share, "target"))
    curves = {}
    for place, (name, draft) in enumerate(drafts.items()):
        progress = functools.partial(_report, on_progress, place, len(drafts))
        curve = measure(draft.model, DRAFT_ROWS, MOST_DRAFT_SECONDS, progress)
        curves[name] = _with_drawing(curve, _drawing_s(draft))
    costs = CalibratedCosts(target_curve, curves, key, description)
    store.save(costs)
    return costs


def _report(on_progress: Progress, place: int, count: int, share: float) -> None:
    on_progress(0.8 + 0.2 * (place + share) / count, "draft model")


def describe(
    target: LoadedModel, drafts: Mapping[str, LoadedModel], settings: EngineSettings
) -> dict[str, str]:
    """Return in words all that step costs depend on: models, machine, threads and how weights are held."""
    single = drafts.get(MODEL)
    named = {role_of(name): file_digest(one.path) for name, one in drafts.items() if single is None}
    return {
        "target": file_digest(target.path),
        "draft": "" if single is None else file_digest(single.path),
        **named,
        "machine": f"{_cpu_name()}, {platform.machine()}",
        "threads": str(num_threads()),
        "device": settings.device,
        "kernels": "reference" if native is None or isinstance(target.model, Decoder) else str(native.isa()),
        "weights": settings.weights,
        "draft_weights": settings.draft_weights,
        "draft_vocab": settings.draft_vocab,
    }


def file_digest(path: Path) -> str:
    """Return a short name for a model's files: of sizes, beginnings and ends, since reading all takes
    long."""
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if path.is_dir() else ''}:{size}:".encode())
        with file.open("rb") as source:
            digest.update(source.read(HASHED_BYTES))
            source.seek(max(0, size - HASHED_BYTES))
            digest.update(source.read(HASHED_BYTES))
    return digest.hexdigest()[:16]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


@dataclass(slots=True)
class _Passes:
    """A model with a little context in a cache of its own, and passes behind it to time."""

    model: CausalModel
    kv: KVStore
    tokens: list[int]
    context: int
    samples: dict[tuple[int, int, int], list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: CausalModel, most_rows: int) -> _Passes:
        context = min(SHARED_CONTEXT, max(BLOCK_SIZE, model.context_length // 4 // BLOCK_SIZE * BLOCK_SIZE))
        num_blocks = context // BLOCK_SIZE + NUM_TOGETHER * (-(-most_rows // BLOCK_SIZE) + 1)
        tokens = [(7 * i + 3) % min(model.vocab_size, 1000) for i in range(max(context, most_rows))]
        return cls(model, model.allocate_kv(num_blocks, BLOCK_SIZE), tokens, context)

    def prefill(self) -> float:
        """Compute the context, and return the seconds of it."""
        blocks = range(self.context // BLOCK_SIZE)
        begin = time.perf_counter()
        self.model.forward([SequenceSlice(self.tokens[: self.context], 0, blocks, 0)], self.kv)
        return time.perf_counter() - begin

    def run(self, rows: int, sequences: int = 1, repeats: int = 1) -> None:
        """Time one pass of so many rows in so many sequences, with the context read so many times over."""
        shared = list(range(self.context // BLOCK_SIZE)) * repeats
        each = rows // sequences
        blocks_each = -(-each // BLOCK_SIZE) + 1
        slices = []
        for place in range(sequences):
            first = self.context // BLOCK_SIZE + place * blocks_each
            own = range(first, first + blocks_each)
            slices.append(SequenceSlice(self.tokens[:each], self.context * repeats, [*shared, *own], each))
        begin = time.perf_counter()
        self.model.forward(slices, self.kv)
        self.samples.setdefault((rows, sequences, repeats), []).append(time.perf_counter() - begin)

    def median(self, rows: int, sequences: int = 1, repeats: int = 1) -> float:
        return statistics.median(self.samples[rows, sequences, repeats])


def measure(
    model: CausalModel, rows: Sequence[int], most_seconds: float, on_progress: Callable[[float], None]
) -> CostCurve:
    """Time forward passes of a model, sizes taking turns, so that a machine that slows down slows all of
    them.

    Args:
        model: loaded.
        rows: numbers of rows to time.
        most_seconds: after two rounds, stop once so much time is gone.
        on_progress: told the share that is done.
    """
    passes = _Passes.of(model, max(rows))
    passes.prefill()  # memory that passes need is taken before anything is timed
    prefill_s = passes.prefill()
    for count in (1, max(rows)):
        passes.run(count)
    passes.samples.clear()
    repeats = max(1, min(LONG_CONTEXT, model.context_length - 2 * max(rows)) // passes.context)
    begin = time.perf_counter()
    for number, done in enumerate(_rounds(passes, rows, repeats), 1):
        spent = time.perf_counter() - begin
        on_progress(min(1.0, max(done / (MOST_ROUNDS * (len(rows) + 2)), spent / most_seconds)))
        if number >= 2 * (len(rows) + 2) and spent > most_seconds:
            break
    on_progress(1.0)
    per_context = max(0.0, passes.median(1, 1, repeats) - passes.median(1)) / max(
        1, (repeats - 1) * passes.context
    )
    per_sequence = max(
        0.0, (passes.median(NUM_TOGETHER, NUM_TOGETHER) - passes.median(NUM_TOGETHER)) / (NUM_TOGETHER - 1)
    )
    # Rows were timed behind a context; the others of a batch each read theirs too, which is counted apart.
    per_sequence = max(0.0, per_sequence - per_context * passes.context)
    base = {count: max(passes.median(count) - per_context * passes.context, 1e-6) for count in rows}
    base[max(passes.context, max(rows) + 1)] = max(prefill_s, base[max(rows)])
    return CostCurve.of(base, per_sequence_s=per_sequence, per_context_s=per_context)


def _rounds(passes: _Passes, rows: Sequence[int], repeats: int) -> Iterator[int]:
    """Run all sizes, again and again, and yield after each how many passes were timed."""
    num_done = 0
    for _ in range(MOST_ROUNDS):
        for count in rows:
            passes.run(count)
            num_done += 1
            yield num_done
        passes.run(1, 1, repeats)
        num_done += 1
        yield num_done
        passes.run(NUM_TOGETHER, NUM_TOGETHER)
        num_done += 1
        yield num_done


def _drawing_s(draft: LoadedModel) -> float:
    """Return the seconds of drawing one token from a row of logits, greedily."""
    size = draft.model.vocab_size
    num_real = min(size, draft.tokenizer.num_real_tokens)
    state = SamplingState(SamplingParams(), 0, (), (), size, num_real)
    kv = draft.model.allocate_kv(1, BLOCK_SIZE)
    row = draft.model.forward([SequenceSlice([0], 0, range(1), 1)], kv).numpy(force=True)[0]
    choose_with_confidence(row, state)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        choose_with_confidence(row, state)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _with_drawing(curve: CostCurve, drawing_s: float) -> CostCurve:
    """Return what draft passes cost with a token drawn from each of few rows; a prompt's rows draw none."""
    seconds = tuple(
        s + drawing_s * (rows if rows <= max(DRAFT_ROWS) else 0)
        for rows, s in zip(curve.rows, curve.seconds, strict=True)
    )
    return CostCurve(curve.rows, seconds, curve.per_sequence_s, curve.per_context_s)
