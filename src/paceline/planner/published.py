"""Loads at which others saw speculation stop paying, beside what the roofline says of the same hardware.

Acceptance is not published with these figures. It is therefore fitted to the speedup at the smallest batch,
and everything at larger batches is prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.planner.capacity import (
    Crossing,
    StepModel,
    Workload,
    at_load,
    break_even_concurrency,
)
from paceline.policy.simulation.curves import roofline

PROMPT_TOKENS, OUTPUT_TOKENS = 100, 400
"""Of MT-Bench, about; an assumption, since lengths are not published with the figures."""


@dataclass(frozen=True, slots=True)
class Published:
    """Speedups over plain decoding by batch size, as published."""

    name: str
    accelerator: str
    target_params_b: float
    target_kv_bytes: float
    draft_params_b: float
    """Read by a draft pass: layers and output matrix."""
    draft_kv_bytes: float
    draft_length: int
    speedups: Mapping[int, float]
    source: str

    @property
    def gains_to(self) -> int:
        """Largest batch size before the first at which nothing was gained."""
        return max(n for n in self.speedups if n < (self.loses_from or 1 << 30))

    @property
    def loses_from(self) -> int | None:
        """First batch size at which nothing was gained; None if there is none among them."""
        return next((n for n, value in sorted(self.speedups.items()) if value < 1.0), None)


_EAGLE_3 = 'Li, Wei, Zhang and Zhang, "EAGLE-3", arXiv 2503.01840, '
_LLAMA_8B = {"target_params_b": 8.03, "target_kv_bytes": 131_072.0, "draft_kv_bytes": 4_096.0}
_EAGLE_HEAD_B, _EAGLE_3_HEAD_B = 0.78, 0.41
"""A layer and the output matrix, which EAGLE-3 cuts to 32,000 tokens."""
PUBLISHED = (
    Published(
        "EAGLE, vLLM", "rtx-3090", draft_params_b=_EAGLE_HEAD_B, draft_length=2,
        speedups={2: 1.30, 4: 1.25, 8: 1.21, 16: 1.10, 24: 1.03, 32: 0.93, 48: 0.82, 56: 0.71},
        source=_EAGLE_3 + "table 5", **_LLAMA_8B,
    ),
    Published(
        "EAGLE-3, vLLM", "rtx-3090", draft_params_b=_EAGLE_3_HEAD_B, draft_length=2,
        speedups={2: 1.75, 4: 1.68, 8: 1.58, 16: 1.49, 24: 1.42, 32: 1.36, 48: 1.21, 56: 1.01},
        source=_EAGLE_3 + "table 5", **_LLAMA_8B,
    ),
    Published(
        "EAGLE, SGLang", "h100", draft_params_b=_EAGLE_HEAD_B, draft_length=3,
        speedups={2: 1.40, 4: 1.38, 8: 1.23, 16: 1.02, 24: 0.93, 32: 0.94, 48: 0.88, 56: 0.99, 64: 0.99},
        source=_EAGLE_3 + "table 3", **_LLAMA_8B,
    ),
    Published(
        "EAGLE-3, SGLang", "h100", draft_params_b=_EAGLE_3_HEAD_B, draft_length=3,
        speedups={2: 1.81, 4: 1.82, 8: 1.62, 16: 1.48, 24: 1.39, 32: 1.32, 48: 1.38, 56: 1.34, 64: 1.38},
        source=_EAGLE_3 + "table 3", **_LLAMA_8B,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """A published crossing beside ours."""

    published: Published
    acceptance: float
    """Fitted to the smallest batch, independent."""
    crossing: Crossing
    """Where this draft length gains nothing any more, by the roofline."""
    speedups: Mapping[int, float]
    """By the roofline, at the published batch sizes."""


def compare(published: Published) -> Comparison:
    """Return what the roofline says where others measured."""
    model = StepModel(
        roofline(published.accelerator, published.target_params_b,
                 kv_bytes_per_token=published.target_kv_bytes),
        roofline(published.accelerator, published.draft_params_b,
                 kv_bytes_per_token=published.draft_kv_bytes),
    )  # fmt: skip
    k = published.draft_length
    smallest = min(published.speedups)

    def speedup(acceptance: float, batch: int) -> float:
        work = Workload(acceptance, PROMPT_TOKENS, OUTPUT_TOKENS)
        return at_load(model, work, batch, k).tokens_per_s / at_load(model, work, batch, 0).tokens_per_s

    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if speedup(middle, smallest) < published.speedups[smallest]:
            low = middle
        else:
            high = middle
    work = replace(Workload(0.0, PROMPT_TOKENS, OUTPUT_TOKENS), acceptance=high)
    return Comparison(
        published,
        high,
        break_even_concurrency(model, work, k),
        {batch: speedup(high, batch) for batch in published.speedups},
    )
