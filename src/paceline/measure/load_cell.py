"""What one cell of a load measurement came to, as one row of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.engine.totals import StepTotals
from paceline.records import FinishReason, GenerationResult

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class CellCounts:
    """What was counted while a cell ran."""

    wall_s: float
    """From the first submission to the last token."""
    ttft_s: tuple[float, ...]
    """Seconds from submission to first token, for each request that had one."""
    token_gaps_s: tuple[float, ...]
    """Seconds between tokens; those that came in one delivery share the time since the one before."""
    chunk_gaps_s: tuple[float, ...]
    """Seconds between deliveries, whatever their number of tokens."""
    steps: StepTotals
    num_preemptions: int
    num_prefix_queries: int
    """Prompt tokens that were looked up in the prefix cache."""
    num_prefix_hits: int
    """Those of them that were found there."""
    peak_kv_blocks: int
    num_kv_blocks: int


@dataclass(frozen=True, slots=True)
class LoadCell:
    """One set of requests, at one concurrency, in one mode."""

    route: str | None
    concurrency: int
    speculation: str
    """The mode as it was asked for: "off", "on:3", "on:3:suffix"."""
    num_outputs: int
    num_identical: int | None
    """Outputs with the tokens and the reason to end of the cell that is off; none without such a cell."""
    num_failed: int
    num_output_tokens: int
    num_drafted: int
    num_accepted: int
    num_decode_steps: int
    """Steps of single sequences that emitted tokens behind the first."""
    counts: CellCounts

    @classmethod
    def of(
        cls,
        route: str | None,
        concurrency: int,
        speculation: str,
        results: Sequence[GenerationResult],
        counts: CellCounts,
        off: Mapping[str, GenerationResult] | None,
    ) -> LoadCell:
        """Sum up the answers of a cell and compare them with those of the cell without speculation."""
        return cls(
            route=route,
            concurrency=concurrency,
            speculation=speculation,
            num_outputs=len(results),
            num_identical=None if off is None else sum(_is_identical(r, off[r.id]) for r in results),
            num_failed=sum(r.finish_reason is FinishReason.ERROR for r in results),
            num_output_tokens=sum(r.usage.completion_tokens for r in results),
            num_drafted=sum(r.speculation.num_drafted for r in results),
            num_accepted=sum(r.speculation.num_accepted for r in results),
            num_decode_steps=sum(r.speculation.num_steps for r in results),
            counts=counts,
        )

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all requests / wall time."""
        return self.num_output_tokens / self.counts.wall_s if self.counts.wall_s > 0 else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; none where nothing was drafted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens for each decode step of a sequence; none where there was none."""
        num_decoded = self.num_output_tokens - len(self.counts.ttft_s)
        return num_decoded / self.num_decode_steps if self.num_decode_steps else None

    @property
    def overhead_share(self) -> float | None:
        """Share of the steps' time that was neither the target's nor a drafter's."""
        steps = self.counts.steps
        return steps.overhead_s / steps.step_s if steps.step_s > 0 else None

    def percentile_s(self, what: str, percentile: int) -> float | None:
        """Return a percentile of "ttft", "itl" or "delivery" in seconds; none where there is no value."""
        counts = self.counts
        values = {"ttft": counts.ttft_s, "itl": counts.token_gaps_s, "delivery": counts.chunk_gaps_s}[what]
        return float(np.percentile(values, percentile)) if values else None

    def to_json(self) -> dict[str, Any]:
        """Return the cell's object in the output of `paceline bench load --json`."""
        times = {
            f"{what}_p{percentile}_s": self.percentile_s(what, percentile)
            for what in ("ttft", "itl", "delivery")
            for percentile in PERCENTILES
        }
        counts, steps = self.counts, self.counts.steps
        return {
            "route": self.route,
            "concurrency": self.concurrency,
            "speculation": self.speculation,
            "tokens_per_second": self.tokens_per_second,
            **times,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
            "num_drafted": self.num_drafted,
            "num_accepted": self.num_accepted,
            "num_outputs": self.num_outputs,
            "num_identical": self.num_identical,
            "num_failed": self.num_failed,
            "num_output_tokens": self.num_output_tokens,
            "wall_s": counts.wall_s,
            "num_preemptions": counts.num_preemptions,
            "num_prefix_queries": counts.num_prefix_queries,
            "num_prefix_hits": counts.num_prefix_hits,
            "peak_kv_blocks": counts.peak_kv_blocks,
            "num_kv_blocks": counts.num_kv_blocks,
            "num_steps": steps.num_steps,
            "step_s": steps.step_s,
            "draft_s": steps.draft_s,
            "verify_s": steps.verify_s,
            "overhead_share": self.overhead_share,
        }


def _is_identical(a: GenerationResult, b: GenerationResult) -> bool:
    return a.token_ids == b.token_ids and a.finish_reason == b.finish_reason
