"""How the budget is shared out among routes, loads and settings, on a bench whose clock is the tests'."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.clock import ManualClock
from paceline.engine.totals import StepTotals
from paceline.measure.journal import Journal
from paceline.measure.load import LoadRequest
from paceline.measure.load_cell import CellCounts
from paceline.measure.load_mode import Mode
from paceline.measure.options import MeasureOptions
from paceline.measure.reading import Answer
from paceline.measure.timing import MOST_SWEEPS, Timing
from paceline.records import SamplingParams

TOKENS = 10
ROUTES = {"short": 1.0, "long": 8.0}
"""Seconds of an answer."""


class FakeBench:
    """Answers take as long as their route says, divided by two where they are drafted for."""

    def __init__(self, clock: ManualClock, slowness: float) -> None:
        self.clock = clock
        self.slowness = slowness
        self.warmed: list[str] = []

    def open(self, draft: str | None) -> None:
        pass

    def teach(self, route: str, readings: Any) -> None:
        pass

    def warm_up(self, request: LoadRequest, modes: list[Mode]) -> None:
        self.warmed = [mode.label for mode in modes]

    def time(self, requests: list[LoadRequest], concurrency: int, mode: Mode, others: Any) -> Any:
        in_batch = {one.id for one in requests}
        assert not in_batch & {one.request.id for one in others}
        seconds = sum(ROUTES[one.route or ""] for one in requests) / (1 if mode.is_off else 2)
        seconds *= self.slowness
        self.clock.advance(seconds)
        counts = CellCounts(seconds, (0.1,), (), (), StepTotals(), 0, 0, 0, 0, 1)
        spent = SimpleNamespace(num_drafted=0, num_accepted=0, num_steps=1)
        usage = SimpleNamespace(completion_tokens=TOKENS)
        each = {"token_ids": (1,) * TOKENS, "usage": usage, "speculation": spent}
        results = {one.id: SimpleNamespace(id=one.id, **each) for one in requests}
        return SimpleNamespace(results=results, counts=counts, target_rows=1, draft_rows=0)


def timed(folder: Path, budget_s: float, slowness: float = 1.0) -> list[dict[str, Any]]:
    """The runs of a budget, with two clients and one, of four answers a route; `slowness` is how many
    times as long as forecast everything takes."""
    traffic = folder / "traffic.jsonl"
    traffic.write_text("{}")
    options = MeasureOptions("t", {None: "d"}, traffic, folder, concurrency=(1, 2))
    journal = Journal(folder / "journal.jsonl", {})
    for route, seconds in ROUTES.items():
        speed = TOKENS / seconds
        loads = [
            {"concurrency": n, "forecasts": [
                {"setting": "model:4", "tokens_per_second": 2 * speed, "speedup": 2.0},
            ]}
            for n in (1, 2)
        ]  # fmt: skip
        chosen = {n: ["auto", "model:4"] for n in (1, 2)}
        journal.add("forecast", {"route": route, "draft": None, "loads": loads, "chosen": chosen})
    answers = {
        route: [
            Answer(LoadRequest(f"{route}{i}", route, (1,) * (9 - i), SamplingParams(), 0), (1,) * TOKENS)
            for i in range(4)
        ]
        for route in ROUTES
    }
    clock = ManualClock()
    bench: Any = FakeBench(clock, slowness)
    timing = Timing(options, journal, bench, lambda: budget_s - clock())
    for _ in timing.run(None, answers, {}):
        assert clock() <= budget_s
    return list(journal.of_kind("run"))


def turns(runs: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    return Counter((one["route"], one["concurrency"]) for one in runs if one["setting"] == "off")


def test_with_time_enough_every_prompt_is_timed_as_often_as_it_may_be(tmp_path: Path) -> None:
    runs = timed(tmp_path, 10_000)
    assert turns(runs) == {
        ("short", 1): 4 * MOST_SWEEPS, ("long", 1): 4 * MOST_SWEEPS,
        ("short", 2): 2 * MOST_SWEEPS, ("long", 2): 2 * MOST_SWEEPS,
    }  # fmt: skip
    assert {one["setting"] for one in runs} == {"off", "auto", "model:4"}
    # Each turn has all settings, and they take turns at being first.
    first = [one["setting"] for one in runs if (one["route"], one["concurrency"]) == ("short", 1)][::3]
    assert set(first) == {"off", "auto", "model:4"}


def test_the_budget_is_kept_and_shared(tmp_path: Path) -> None:
    runs = timed(tmp_path, 200)
    counts = turns(runs)
    assert set(counts) == {(route, n) for route in ROUTES for n in (1, 2)}
    # Shares of what each could have, not numbers of turns, are alike.
    assert counts["short", 1] == pytest.approx(2 * counts["short", 2], abs=2)


@pytest.mark.parametrize("budget", [60, 75, 90, 105, 120, 135, 150])
def test_the_budget_is_kept_where_turns_take_longer_than_forecast(tmp_path: Path, budget: int) -> None:
    runs = timed(tmp_path, budget, slowness=1.6)
    assert sum(one["wall_s"] for one in runs) > 0.5 * budget


def test_where_it_is_short_the_longest_turns_lose_a_setting_and_the_policy_stays(tmp_path: Path) -> None:
    runs = timed(tmp_path, 55)
    assert len(turns(runs)) == 4
    settings = {one["setting"] for one in runs if (one["route"], one["concurrency"]) == ("long", 2)}
    assert settings == {"off", "auto"}
    assert "model:4" in {one["setting"] for one in runs if one["route"] == "short"}


def test_what_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    assert set(turns(timed(tmp_path, 9))) == {("short", 1), ("short", 2)}
