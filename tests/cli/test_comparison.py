from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.cli.comparison import Comparison, ModeSummary, summary_json
from paceline.records import FinishReason, GenerationResult, SpeculationStats, Timing, Usage


def answer(
    first: float | None, last: float | None, token_ids: tuple[int, ...], stats: SpeculationStats | None = None
) -> GenerationResult:
    return GenerationResult(
        id="x",
        route=None,
        text="",
        token_ids=token_ids,
        finish_reason=FinishReason.LENGTH,
        usage=Usage(3, len(token_ids)),
        speculation=stats or SpeculationStats(None, len(token_ids) - 1, 0, 0, len(token_ids) - 1),
        timing=Timing(
            ttft_s=first,
            decode_s=0.0 if first is None or last is None else last - first,
            draft_s=0.5,
            verify_s=1.0,
            num_decoded=len(token_ids) - 1,
            first_token_at=first,
            last_token_at=last,
        ),
        seed=0,
    )


def test_speed_counts_time_once_however_many_decode_in_it() -> None:
    one_after_another = [answer(0.0, 2.0, (1,) * 5), answer(10.0, 12.0, (1,) * 5)]
    side_by_side = [answer(0.0, 2.0, (1,) * 5), answer(1.0, 3.0, (1,) * 5), answer(1.5, 1.75, (1,) * 5)]
    assert ModeSummary.of(one_after_another).tokens_per_second == pytest.approx(8 / 4)
    assert ModeSummary.of(side_by_side).tokens_per_second == pytest.approx(12 / 3)


def test_rates_are_of_sums_and_not_means_of_rates() -> None:
    few = SpeculationStats("model", 1, 2, 2, 3)
    many = SpeculationStats("model", 10, 40, 10, 20)
    row = ModeSummary.of([answer(0.0, 1.0, (1,) * 4, few), answer(1.0, 2.0, (1,) * 21, many)])
    assert row.acceptance_rate == pytest.approx(12 / 42)
    assert row.acceptance_length == pytest.approx(23 / 11)


def test_nothing_is_none() -> None:
    row = ModeSummary.of([answer(None, None, (1,))])
    assert (row.tokens_per_second, row.acceptance_rate, row.ttft_s) == (None, None, None)


def test_identical_means_tokens_and_reason() -> None:
    off = answer(0.0, 4.0, (1, 2, 3))
    on = answer(0.0, 2.0, (1, 2, 3))
    other = replace(on, token_ids=(1, 2, 4))
    stopped = replace(on, finish_reason=FinishReason.STOP)
    comparison = Comparison((off, off, off), (on, other, stopped))
    assert comparison.num_identical == 1
    assert Comparison((off,), (on,)).ratio == pytest.approx(2.0)
    line = summary_json({"off": (off,), "on": (on,)})["summary"]
    assert set(line) == {"off", "on", "ratio", "num_identical", "num_outputs"}
    assert line["off"] == {"tokens_per_second": 0.5, "acceptance_rate": None, "acceptance_length": 1.0}
    assert set(summary_json({"on": (on,)})["summary"]) == {"on"}
