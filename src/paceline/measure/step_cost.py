"""T(n): what one forward pass over n token rows costs, for a whole model, on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.config.memory import available_memory
from paceline.kernels.native import native
from paceline.kernels.threads import num_threads
from paceline.models.decoder import Decoder
from paceline.models.interface import CausalModel, KVStore, SequenceSlice
from paceline.models.load import LoadedModel

BLOCK_SIZE = 16
PREFILL_CHUNK = 256
MOST_READ_BYTES = 1 << 30
READ_PASSES = 3
DEFAULT_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Milliseconds of forward passes, and what memory allows."""

    model: str
    context: int
    """Positions before the rows."""
    threads: int
    isa: str
    """Instruction set of the native kernels, or "reference"."""
    ms: Mapping[int, float]
    """Median milliseconds by number of rows."""
    read_bandwidth_gb_s: float
    """Of all threads together reading memory, measured between the passes; the best of all rounds."""
    file_bytes_per_step: int
    """Bytes, as the file stores them, of the tensors that one step reads: memory that packing adds or saves
    does not count."""

    @property
    def bandwidth_fraction(self) -> float | None:
        """Return file bytes a second at one row, as a share of the read bandwidth; none without T(1)."""
        if 1 not in self.ms or not self.read_bandwidth_gb_s:
            return None
        return self.file_bytes_per_step / (self.ms[1] / 1e3) / (self.read_bandwidth_gb_s * 1e9)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `paceline bench step-cost --json` prints."""
        return {
            "model": self.model,
            "context": self.context,
            "threads": self.threads,
            "isa": self.isa,
            "rows": [{"rows": rows, "ms": ms} for rows, ms in self.ms.items()],
            "read_bandwidth_gb_s": self.read_bandwidth_gb_s,
            "file_bytes_per_step": self.file_bytes_per_step,
            "bandwidth_fraction": self.bandwidth_fraction,
        }


class StepTimer:
    """A model with `context` positions in its cache, and passes behind them to time.

    All rows are the last ones of one sequence, as when drafts are verified, and logits are computed for each.
    Passes of different sizes take turns, so that a machine that slows down slows all of them.
    """

    def __init__(self, loaded: LoadedModel, context: int, rows: Sequence[int]) -> None:
        self._loaded, self._context = loaded, context
        self._samples: dict[int, list[float]] = {count: [] for count in rows}
        self._read_seconds: list[float] = []
        self._read_bytes = min(MOST_READ_BYTES, available_memory() // 4)
        model = loaded.model
        num_blocks = -(-(context + max(rows)) // BLOCK_SIZE)
        self._block_ids = range(num_blocks)
        self._kv: KVStore = model.allocate_kv(num_blocks, BLOCK_SIZE)
        rng = np.random.default_rng(0)
        num_tokens = min(model.vocab_size, loaded.tokenizer.num_real_tokens)
        self._token_ids = rng.integers(0, num_tokens, context + max(rows)).tolist()
        for start in range(0, context, PREFILL_CHUNK):
            end = min(start + PREFILL_CHUNK, context)
            model.forward([SequenceSlice(self._token_ids[start:end], start, self._block_ids, 0)], self._kv)
        for count in rows:  # memory that a pass needs is taken before anything is timed
            self._run(count)

    def round(self, repeats: int) -> None:
        """Time each number of rows `repeats` times, and the memory once."""
        for _ in range(repeats):
            for count, samples in self._samples.items():
                begin = time.perf_counter()
                self._run(count)
                samples.append(time.perf_counter() - begin)
        if native is not None:
            self._read_seconds.append(native.fastest_read(self._read_bytes, READ_PASSES))

    def costs(self) -> StepCosts:
        """Return the medians so far."""
        bandwidth = self._read_bytes / min(self._read_seconds) / 1e9 if self._read_seconds else 0.0
        return StepCosts(
            model=self._loaded.name,
            context=self._context,
            threads=num_threads(),
            isa=instruction_set(self._loaded.model),
            ms={count: 1e3 * statistics.median(samples) for count, samples in self._samples.items()},
            read_bandwidth_gb_s=bandwidth,
            file_bytes_per_step=self._loaded.step_bytes,
        )

    def _run(self, count: int) -> None:
        token_ids = self._token_ids[self._context : self._context + count]
        part = SequenceSlice(token_ids, self._context, self._block_ids, count)
        self._loaded.model.forward([part], self._kv)


def instruction_set(model: CausalModel) -> str:
    """Return what a model computes with: the native instruction set, or "reference"."""
    return "reference" if native is None or isinstance(model, Decoder) else str(native.isa())
