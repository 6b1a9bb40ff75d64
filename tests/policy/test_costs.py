"""Step costs: the calibrated curve, and how it follows what passes really take."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import ConfigError
from paceline.policy.cost_store import CostStore, cost_key
from paceline.policy.costs import MAX_ROWS, CostCurve, OnlineCurve
from paceline.policy.step_costs import CalibratedCosts, StepCosts
from paceline.step_records import SequenceStep, StepRecord

CURVE = CostCurve.of({1: 0.06, 2: 0.05, 4: 0.08, 8: 0.2}, per_sequence_s=1e-3, per_context_s=1e-6)


def test_a_curve_keeps_its_bumps_and_goes_on_behind_its_end() -> None:
    assert CURVE.base([1, 2, 3, 4, 8]).tolist() == pytest.approx([0.06, 0.05, 0.065, 0.08, 0.2])
    assert float(CURVE.base(16)) == pytest.approx(0.2 + 8 * 0.03)
    assert float(CURVE.base(0)) == 0.0
    assert float(CURVE.base(0.5)) == pytest.approx(0.03)
    assert CURVE.seconds_of(2, sequences=3, context=1000) == pytest.approx(0.05 + 0.002 + 0.001)


@pytest.mark.parametrize(
    "table", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {1: float("nan")}, {2: 1.0, 1: float("inf")}]
)
def test_what_is_no_curve(table: dict[int, float]) -> None:
    with pytest.raises(ConfigError, match="paceline calibrate"):
        CostCurve.of(table)


def test_it_survives_json() -> None:
    costs = CalibratedCosts(CURVE, {"model": CURVE}, "key", {"machine": "this"})
    assert CalibratedCosts.from_json(json.loads(json.dumps(costs.to_json()))) == costs


def learn(online: OnlineCurve, rows: int, seconds: float, times: int = 60, noise: float = 0.02) -> None:
    rng = np.random.default_rng(rows)
    for _ in range(times):
        online.observe([(rows, 1, 0.0)], seconds * float(np.exp(rng.normal(0, noise))))


def test_a_machine_that_slows_down_slows_all_rows() -> None:
    online = OnlineCurve(CURVE)
    learn(online, 4, 0.08)
    learn(online, 4, 0.08 * 1.3, times=40)
    for rows in (1, 2, 4, 8):
        assert online.seconds(rows) == pytest.approx(1.3 * float(CURVE.base(rows)), rel=0.07)


def test_an_error_of_the_shape_is_learned_where_it_is_seen() -> None:
    online = OnlineCurve(CURVE)
    for _ in range(6):
        learn(online, 1, 0.06, times=20)
        learn(online, 8, 0.26, times=20)
    assert online.seconds(1) == pytest.approx(0.06, rel=0.04)
    assert online.seconds(8) == pytest.approx(0.26, rel=0.05)
    # In between, what both have in common.
    assert online.seconds(2) == pytest.approx(0.05, rel=0.15)
    assert online.median_error < 0.05


def test_outliers_change_little() -> None:
    online = OnlineCurve(CURVE)
    learn(online, 1, 0.06, times=100)
    for _ in range(3):
        online.observe([(1, 1, 0.0)], 3.0)
        learn(online, 1, 0.06, times=10)
    assert online.seconds(1) == pytest.approx(0.06, rel=0.05)
    before = online.seconds(1)
    for nonsense in (0.0, -1.0, float("nan"), float("inf")):
        online.observe([(1, 1, 0.0)], nonsense)
    online.observe([], 1.0)
    assert online.seconds(1) == before


def test_the_table_and_single_passes_agree_at_any_size() -> None:
    online = OnlineCurve(CURVE)
    learn(online, 3, 0.09)
    assert [online.seconds(n) for n in (1, 5, 100, MAX_ROWS)] == pytest.approx(
        [float(online.table()[n]) for n in (1, 5, 100, MAX_ROWS)]
    )
    assert online.seconds(2 * MAX_ROWS) > online.seconds(MAX_ROWS)


def record(rows: int, verify_s: float, **more: Any) -> StepRecord:
    part = SequenceStep("r", 0, None, None, 100, 1, True, rows - 1, rows - 1, 0, 1, 1)
    values: dict[str, Any] = {
        "number": 0, "began_at": 0.0, "plan_s": 0.0, "draft_s": 0.0, "verify_s": verify_s, "commit_s": 0.001,
        "sequences": (part,), "num_running": 1, "num_waiting": 0, "num_preemptions": 0, "num_kv_blocks": 0,
        "num_kv_blocks_used": 0,
    }  # fmt: skip
    return StepRecord(**{**values, **more})


def test_steps_teach_target_drafts_and_what_is_around_them() -> None:
    costs = StepCosts(CalibratedCosts(CURVE, {"model": CURVE}))
    for _ in range(80):
        costs.observe(record(4, 0.08 * 1.2, draft_s=0.36, draft_rows=(1, 1, 1)))
        costs.observe(record(1, 0.06 * 1.2))
    assert costs.target.speed == pytest.approx(1.2, rel=0.05)
    assert costs.draft("model").seconds(1) == pytest.approx(0.12, rel=0.06)
    assert costs.plain_s(1, 100) == pytest.approx(0.06 * 1.2 + 0.001, rel=0.05)
    table = costs.verify_table(1, 100, 1, 3)
    assert len(table) == 4
    assert float(table[3]) == pytest.approx(0.08 * 1.2 + 0.001, rel=0.06)
    assert costs.median_error < 0.1


def test_catching_up_costs_a_pass_for_each_chunk() -> None:
    costs = StepCosts(CalibratedCosts(CURVE, {"model": CostCurve.of({1: 0.01, 128: 0.1})}))
    assert costs.catch_up_s("model", 300) == pytest.approx(0.2 + costs.catch_up_s("model", 44))
    assert costs.catch_up_s("model", 0) == 0.0


def test_calibrations_are_kept_by_models_machine_and_threads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CostStore(tmp_path / "costs")
    key = cost_key({"target": "a", "threads": "2"})
    assert key != cost_key({"target": "a", "threads": "4"})
    assert store.load(key) is None
    costs = CalibratedCosts(CURVE, {}, key)
    path = store.save(costs)
    assert store.load(key) == costs
    assert [p.name for p in path.parent.iterdir()] == [f"{key}.json"]
    with caplog.at_level(logging.WARNING):
        for broken in (
            "{",
            '{"schema": 99}',
            '{"schema": 1}',
            "[]",
            '{"schema": 1, "target": {"rows": [1]}}',
        ):
            path.write_text(broken)
            assert store.load(key) is None
        path.write_text(json.dumps(CalibratedCosts(CURVE, {}, "other").to_json()))
        assert store.load(key) is None
    assert len(caplog.records) == 6


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file")
    with pytest.raises(ConfigError, match="PACELINE_CACHE"):
        CostStore(tmp_path / "costs").save(CalibratedCosts(CURVE, {}, "key"))
