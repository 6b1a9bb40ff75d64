"""What a set of answers adds up to, and how two sets of them compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.records import GenerationResult, SpeculationStats


@dataclass(frozen=True, slots=True)
class ModeSummary:
    """The answers of one run, with speculation off or on, as one row of figures."""

    tokens_per_second: float | None
    """Tokens after the first of each answer / the time in which at least one answer was decoding."""
    acceptance_rate: float | None
    acceptance_length: float | None
    ttft_s: float | None
    """Median time to first token."""
    draft_s: float
    verify_s: float
    """Sums over answers; answers that share steps share their seconds, so at a concurrency above 1 they
    count several times."""

    @classmethod
    def of(cls, results: Sequence[GenerationResult]) -> ModeSummary:
        """Sum up the answers of one run."""
        total = SpeculationStats(
            drafter=None,
            num_steps=sum(r.speculation.num_steps for r in results),
            num_drafted=sum(r.speculation.num_drafted for r in results),
            num_accepted=sum(r.speculation.num_accepted for r in results),
            num_emitted=sum(r.speculation.num_emitted for r in results),
        )
        num_decoded = sum(r.timing.num_decoded for r in results)
        decoding_s = _covered(results)
        first_tokens = sorted(r.timing.ttft_s for r in results if r.timing.ttft_s is not None)
        return cls(
            tokens_per_second=num_decoded / decoding_s if decoding_s > 0 else None,
            acceptance_rate=total.acceptance_rate,
            acceptance_length=total.acceptance_length,
            ttft_s=first_tokens[len(first_tokens) // 2] if first_tokens else None,
            draft_s=sum(r.timing.draft_s for r in results),
            verify_s=sum(r.timing.verify_s for r in results),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the three figures of the summary line."""
        return {
            "tokens_per_second": self.tokens_per_second,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same requests with speculation off and on."""

    off: tuple[GenerationResult, ...]
    on: tuple[GenerationResult, ...]

    @property
    def num_identical(self) -> int:
        """Answers with equal token ids and equal reasons to end."""
        return sum(
            a.token_ids == b.token_ids and a.finish_reason == b.finish_reason
            for a, b in zip(self.off, self.on, strict=True)
        )

    @property
    def ratio(self) -> float | None:
        """Tokens per second, on / off."""
        off, on = ModeSummary.of(self.off).tokens_per_second, ModeSummary.of(self.on).tokens_per_second
        return on / off if on is not None and off else None


def summary_json(runs: dict[str, Sequence[GenerationResult]]) -> dict[str, Any]:
    """Return the last line of `paceline generate --json`."""
    summary: dict[str, Any] = {mode: ModeSummary.of(results).to_json() for mode, results in runs.items()}
    if len(runs) == 2:
        comparison = Comparison(*(tuple(results) for results in runs.values()))
        summary["ratio"] = comparison.ratio
        summary["num_identical"] = comparison.num_identical
        summary["num_outputs"] = len(comparison.off)
    return {"summary": summary}


def _covered(results: Sequence[GenerationResult]) -> float:
    """Return the seconds in which at least one answer was between its first and its last token."""
    spans = sorted(
        (r.timing.first_token_at, r.timing.last_token_at)
        for r in results
        if r.timing.first_token_at is not None and r.timing.last_token_at is not None
    )
    covered, reached = 0.0, float("-inf")
    for begin, end in spans:
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered
