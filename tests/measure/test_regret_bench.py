"""Turns on an engine whose clock moves with its models alone: what settings have of one another (nothing),
what the policy hears, and whether the forecast is that of the slices that were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from tests.engine.scripted import hashed_logits, shared_engine, spoiled
from tests.policy.scenes import COSTS, DRAFT, TARGET, auto

from paceline.clock import ManualClock
from paceline.drafters.answer_store import AnswerStore
from paceline.drafters.mixed import MixedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.engine import Engine
from paceline.measure.load import LoadLoop, LoadRequest
from paceline.measure.load_cell import CellCounts
from paceline.measure.load_mode import Mode
from paceline.measure.regret import RegretCell, Run, summarise
from paceline.measure.regret_bench import RegretBench, WarmUp
from paceline.measure.rows import RowCounter
from paceline.measure.run_file import RunFile
from paceline.measure.turns import parse_settings
from paceline.models.interface import CausalModel, KVStore, SequenceSlice
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.costs import CostCurve
from paceline.records import GenerationResult, SamplingParams

V = 12
TARGET_LOGITS = hashed_logits(V)
COMMON = [(5 * i) % V for i in range(12)]
"""What all prompts begin with: three blocks."""


def engine_of(slowness: Callable[[], float] = lambda: 1.0) -> tuple[Engine, ManualClock]:
    """A target, a draft model, look-ups and both together, under the policy; passes take what is calibrated,
    times `slowness()`."""
    clock = ManualClock()
    engine, model = shared_engine(
        TARGET_LOGITS, V, spoiled(TARGET_LOGITS), num_blocks=256, policy=auto(costs=COSTS), clock=clock
    )
    suffix = SuffixDrafter(answers=AnswerStore())
    engine._drafters |= {"suffix": suffix, "mixed": MixedDrafter(suffix, model)}
    engine._drafting._drafters = engine._drafters
    for one, curve in ((engine._model, TARGET), (model._model, DRAFT)):
        _slow_down(one, curve, clock, slowness)
    return engine, clock


def _slow_down(
    model: CausalModel, curve: CostCurve, clock: ManualClock, slowness: Callable[[], float]
) -> None:
    forward = model.forward

    def slow_forward(slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        clock.advance(curve.seconds_of(sum(len(one.token_ids) for one in slices)) * slowness())
        return forward(slices, kv)

    model.forward = slow_forward  # type: ignore[method-assign]


def requests(count: int, max_tokens: int = 24) -> list[LoadRequest]:
    params = SamplingParams(max_tokens=max_tokens)
    return [LoadRequest(f"r{i}", "route", (*COMMON, i % V, i // V, 2), params, i) for i in range(count)]


@dataclass(frozen=True)
class Seen:
    """What a turn came to, clocks aside."""

    num_hits: int
    rows: tuple[int, int]
    drafted: list[tuple[int, int]]
    num_steps: int


class WatchedLoop(LoadLoop):
    """Keeps what each run came to, by mode."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        super().__init__(engine, clock=clock)
        self.seen: list[tuple[str, Seen]] = []
        self._rows = RowCounter()
        engine.observers.add(self._rows)

    def run(  # type: ignore[no-untyped-def, override]
        self, requests: Sequence[LoadRequest], concurrency: int, mode: Mode, *more, **named
    ) -> tuple[dict[str, GenerationResult], CellCounts]:
        self._rows.take()
        results, counts = super().run(requests, concurrency, mode, *more, **named)
        drafted = [(one.speculation.num_drafted, one.speculation.num_accepted) for one in results.values()]
        seen = Seen(counts.num_prefix_hits, self._rows.take(), drafted, counts.steps.num_steps)
        self.seen.append((mode.label, seen))
        return results, counts


def bench_of(
    engine: Engine, clock: ManualClock, settings: str, warm_up: int = 0
) -> tuple[RegretBench, WatchedLoop, RunFile]:
    loop, runs = WatchedLoop(engine, clock), RunFile(None, {})
    modes = parse_settings(settings, ["model", "suffix", "mixed"])
    return RegretBench(engine, runs, modes, WarmUp(warm_up, 8), loop=loop), loop, runs


SETTINGS = "off,auto,model:2,suffix:3,mixed:3"


@pytest.mark.parametrize("concurrency", [1, 2])
def test_no_setting_profits_from_another_s_turn(concurrency: int) -> None:
    """Each turn has the rows, the drafts and the steps of a setting that has an engine of its own."""
    engine, clock = engine_of()
    bench, loop, _ = bench_of(engine, clock, SETTINGS)
    labels = [mode.label for mode in bench.cell("route", requests(6), concurrency, 1, 0)]
    assert labels == [label for label, _ in loop.seen]
    for label in ("off", "model:2", "suffix:3", "mixed:3"):
        own, own_clock = engine_of()
        alone = WatchedLoop(own, own_clock)
        (mode,) = [
            one for one in parse_settings(SETTINGS, ["model", "suffix", "mixed"]) if one.label == label
        ]
        for start in range(0, 6, concurrency):
            alone.run(requests(6)[start : start + concurrency], concurrency, mode, keeps_answers=True)
        assert [seen for name, seen in loop.seen if name == label] == [seen for _, seen in alone.seen]
        # Look-ups do find a setting's own earlier slices.
        assert label == "off" or sum(n for _, seen in alone.seen for n, _ in seen.drafted) > 0


def test_without_tenants_and_with_kv_kept_a_later_setting_would_profit() -> None:
    """What the test above would see."""
    engine, clock = engine_of()
    loop = WatchedLoop(engine, clock)
    suffix = Mode(3, "suffix", "suffix:3")
    for _ in range(2):
        loop.run(requests(1), 1, suffix, keeps_answers=True)
    (_, first), (_, again) = loop.seen
    assert first.num_hits == again.num_hits == 0
    assert again.num_steps < first.num_steps
    engine.clear_prefix_cache = lambda: None  # type: ignore[method-assign]
    loop.run(requests(1), 1, suffix)
    assert loop.seen[-1][1].num_hits == len(COMMON)


def test_prompts_that_a_slice_shares_are_shared_alike_in_each_setting() -> None:
    engine, clock = engine_of()
    bench, loop, _ = bench_of(engine, clock, SETTINGS)
    for _ in bench.cell("route", requests(4), 2, 1, 0):
        pass
    assert {seen.num_hits for _, seen in loop.seen} == {len(COMMON)}


def test_settings_rotate_from_slice_to_slice() -> None:
    engine, clock = engine_of()
    bench, _, _ = bench_of(engine, clock, "off,auto,suffix:2")
    labels = [mode.label for mode in bench.cell("route", requests(3), 1, 1, 0)]
    assert labels == [
        "auto", "suffix:2", "off",
        "suffix:2", "off", "auto",
        "off", "auto", "suffix:2",
    ]  # fmt: skip
    assert bench.num_turns(requests(3), 1) == 9
    assert bench.num_turns(requests(3), 2) == 3


def test_the_warm_up_is_made_once_in_each_setting_and_forgotten_by_look_ups() -> None:
    engine, clock = engine_of()
    bench, loop, runs = bench_of(engine, clock, "off,auto,suffix:3", warm_up=1)
    for _ in bench.cell("route", requests(3), 1, 1, 0):
        pass
    assert sorted(label for label, _ in loop.seen[:3]) == ["auto", "off", "suffix:3"]
    assert len(loop.seen) == 3 + 9
    cold, cold_clock = engine_of()
    other, cold_loop, _ = bench_of(cold, cold_clock, "off,auto,suffix:3")
    for _ in other.cell("route", requests(3), 1, 1, 0):
        pass
    assert [s for name, s in loop.seen[3:] if name == "suffix:3"] == [
        s for name, s in cold_loop.seen if name == "suffix:3"
    ]
    assert [run.num_identical for run in runs.runs] == [None, 3, 3]


def test_the_policy_hears_of_its_own_turns_and_of_all_costs() -> None:
    engine, clock = engine_of()
    policy = engine.policy
    assert isinstance(policy, SpeculationPolicy)
    bench, loop, _ = bench_of(engine, clock, SETTINGS, warm_up=1)
    for _ in bench.cell("route", requests(4), 1, 1, 0):
        pass
    own = [seen for name, seen in loop.seen if name == "auto"]
    assert policy._track("route").lengths.latest == [24] * 5
    assert policy.totals.num_steps == sum(seen.num_steps for seen in own)
    assert policy.costs.target.num_observed == sum(seen.num_steps for _, seen in loop.seen)
    assert policy in engine.observers
    assert len(list(engine.observers)) == 3


def test_a_control_window_that_is_open_does_not_reach_into_other_settings() -> None:
    engine, clock = engine_of()
    policy = engine.policy
    assert isinstance(policy, SpeculationPolicy)
    bench, loop, _ = bench_of(engine, clock, "off,auto,model:2")
    modes = bench.cell("route", requests(2), 1, 1, 0)
    assert next(modes).label == "auto"
    policy.control._phase = "control"
    with bench._heard(Mode(label="auto", is_auto=True)):
        pass
    assert not policy.control.is_open
    assert next(modes).label == "model:2"
    assert sum(n for n, _ in loop.seen[-1][1].drafted) > 0


def cell_of(engine: Engine, clock: ManualClock, count: int, concurrency: int, repeats: int = 2) -> RegretCell:
    bench, _, runs = bench_of(engine, clock, "off,auto,model:2", warm_up=1)
    for repeat in range(1, repeats + 1):
        for _ in bench.cell("route", requests(count, 40), concurrency, repeat, 0):
            pass
    (cell,) = summarise(runs.runs)
    return cell


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_the_forecast_is_that_of_the_slices_measured(concurrency: int) -> None:
    """Where steps take what they are calibrated to take, it errs by the engine's rules alone: who starts with
    whom, what prompts share, and how batches thin out."""
    engine, clock = engine_of()
    cell = cell_of(engine, clock, 2 * concurrency, concurrency)
    assert cell.auto_over_off is not None
    assert cell.predicted_speedup == pytest.approx(cell.auto_over_off.mean, rel=0.01)
    assert cell.forecast_of_off == pytest.approx(1.0, rel=0.01)
    assert (cell.num_slices, cell.num_identical) == (4, cell.num_outputs)


def test_the_forecast_follows_a_machine_whose_speed_changes_from_turn_to_turn() -> None:
    """Three turns in four at the calibrated speed, the fourth at half of it: slices of auto are forecast at
    the speed that they had."""
    turn, slow_slices = [0], []
    engine, clock = engine_of(lambda: 2.0 if turn[0] % 4 == 0 else 1.0)
    bench, _, runs = bench_of(engine, clock, "off,auto,model:2")
    for repeat in range(1, 4):
        for mode in bench.cell("route", requests(4, 40), 1, repeat, 0):
            if mode.is_auto:
                slow_slices.append(turn[0] % 4 == 0)
            turn[0] += 1
    forecasts = [one.plain_s or 0.0 for run in runs.runs if run.setting == "auto" for one in run.slices]
    # Fifteen rows of a prompt, and 39 steps of one row.
    plain_s = TARGET.seconds_of(15) + 39 * TARGET.seconds_of(1)
    expected = [plain_s * (2.0 if is_slow else 1.0) for is_slow in slow_slices]
    assert 0 < sum(slow_slices) < 12
    # Single ones err by more: what is believed of one row beside several moves with such leaps.
    assert sum(forecasts) == pytest.approx(sum(expected), rel=0.05)
    assert forecasts == pytest.approx(expected, rel=0.25)


def test_a_turn_that_is_kept_is_not_run_again() -> None:
    engine, clock = engine_of()
    bench, loop, runs = bench_of(engine, clock, "off,auto,suffix:2")
    for _ in range(2):
        labels = [mode.label for mode in bench.cell("route", requests(2), 1, 1, 0)]
        assert len(labels) == 6
    assert len(loop.seen) == 6
    # One that lacks a setting is made again as a whole.
    runs.runs.pop()
    for _ in bench.cell("route", requests(2), 1, 1, 0):
        pass
    assert len(loop.seen) == 12
    assert len(runs.runs) == 3


def test_answers_that_differ_are_counted() -> None:
    engine, clock = engine_of()
    bench, loop, runs = bench_of(engine, clock, "off,auto,suffix:2")
    honest = loop.run

    def spoil(*given, **named):  # type: ignore[no-untyped-def]
        results, counts = honest(*given, **named)
        if given[2].label == "suffix:2" and "r1" in results:
            results["r1"] = replace(results["r1"], token_ids=(0, *results["r1"].token_ids[1:-1]))
        return results, counts

    loop.run = spoil  # type: ignore[method-assign]
    for _ in bench.cell("route", requests(3), 1, 1, 0):
        pass
    same: dict[str, Run] = {run.setting: run for run in runs.runs}
    assert (same["auto"].num_identical, same["suffix:2"].num_identical) == (3, 2)
    (cell,) = summarise(runs.runs)
    assert (cell.num_outputs, cell.num_identical) == (6, 5)
