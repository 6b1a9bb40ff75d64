"""What is kept beside the decisions: the log, budgets, lengths of answers, figures."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest

from paceline.policy.counterfactual import ControlWindows, RouteComparison
from paceline.policy.decision_log import DecisionLog
from paceline.policy.ledger import Ledger
from paceline.policy.output_lengths import OutputLengths
from paceline.policy.situation import break_even, emitted
from paceline.policy.states import Decision, EventKind


def decision(number: int, route: str = "chat") -> Decision:
    return Decision(1.0, number, route, EventKind.STATE, "speculating", "paused: load", "paused: because")


def test_the_log_is_appended_to_and_turned_over(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "decisions.jsonl"
    log = DecisionLog(path, max_bytes=700, num_old_files=2, wall_clock=lambda: 5.0)
    for number in range(12):
        log.add(decision(number))
    files = sorted(p.name for p in path.parent.iterdir())
    assert files == ["decisions.jsonl", "decisions.jsonl.1", "decisions.jsonl.2"]
    assert all(p.stat().st_size <= 700 for p in path.parent.iterdir())
    lines = [
        json.loads(line) for name in reversed(files) for line in (path.parent / name).read_text().splitlines()
    ]
    steps = [line["step"] for line in lines]
    assert steps == list(range(12 - len(steps), 12))
    assert lines[0]["sentence"] == "paused: because"
    assert (lines[0]["time"], lines[0]["kind"]) == (5.0, "state")
    assert path.stat().st_mode & 0o077 == 0
    again = DecisionLog(path, max_bytes=700)
    again.add(decision(99))
    assert json.loads(path.read_text().splitlines()[-1])["step"] == 99


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    log = DecisionLog(tmp_path / "file" / "decisions.jsonl")
    with caplog.at_level(logging.ERROR):
        log.add(decision(1))
        log.add(decision(2))
    assert len(caplog.records) == 1
    assert [d.step for d in log.of("chat")] == [1, 2]
    assert log.of("code") == []


def test_listeners_are_told_and_cannot_stop_it() -> None:
    log, told = DecisionLog(), []

    def broken(one: Decision) -> None:
        raise RuntimeError("listener")

    log.add_listener(broken)
    log.add_listener(told.append)
    log.add(decision(1))
    assert [d.step for d in told] == [1]


def test_no_thousand_steps_lose_more_than_the_share() -> None:
    ledger, losses = Ledger(0.01), []
    for _ in range(5000):
        ledger.earn(0.1)
        loss = 0.05 if ledger.can_spend(0.05) else 0.0
        if loss:
            ledger.spend(loss)
        losses.append(loss)
    for begin in range(0, 4000, 100):
        assert sum(losses[begin : begin + 1000]) <= 0.01 * 1000 * 0.1 + 0.05
    assert ledger.lost_s > 0
    idle = Ledger(0.0)
    idle.earn(1.0)
    assert not idle.can_spend(0.0)


def test_what_is_left_of_an_answer_depends_on_how_far_it_is() -> None:
    lengths = OutputLengths()
    assert lengths.remaining(0) > 8
    assert lengths.mean is None
    for length in (5, 5, 5, 205):
        lengths.add(length)
    assert lengths.mean == 55.0
    assert lengths.remaining(0) == 55.0
    assert lengths.remaining(5) == 200.0
    assert lengths.remaining(200) == 5.0
    assert lengths.remaining(1000) > 100


def test_break_even_is_where_drafting_gains_nothing() -> None:
    for length, ratio in ((1, 1.3), (3, 1.9), (4, 2.6)):
        rate = break_even({length: ratio})
        assert rate is not None
        assert emitted(rate, length) == pytest.approx(ratio, rel=1e-6)
    assert break_even({1: 1.5, 3: 1.9}) == min(break_even({1: 1.5}), break_even({3: 1.9}))  # type: ignore[type-var]
    assert break_even({2: 3.5}) is None
    assert break_even({4: 100 / 80}) == pytest.approx(0.20, abs=0.005)


def windows(
    plain_s: float, spec_s: float, tokens: int, control: ControlWindows, steps: int
) -> list[dict[str, float]]:
    """Run steps of two sequences, speculating but where a window is open."""
    found = []
    for _ in range(steps):
        is_plain = control.is_open
        if not is_plain:
            control.consider(2, plain_s, 1.5, is_checked=lambda: False)
        seconds = plain_s if is_plain else spec_s
        routes = {"chat": (2, 2 if is_plain else tokens)}
        if ratios := control.add_step(2, seconds, routes, is_plain=is_plain, has_prompts=False):
            found.append(ratios)
    return found


def test_control_windows_measure_the_speedup_within_their_budget() -> None:
    control = ControlWindows()
    found = windows(0.1, 0.15, 5, control, 4000)
    assert len(found) == control.num_done > 3
    # Five tokens in 0.15 s against two in 0.1 s.
    assert all(ratios["chat"] == pytest.approx((5 / 0.15) / (2 / 0.1)) for ratios in found)
    assert len(found) * 8 * 0.1 * (1 - 1 / 1.5) <= 0.01 * 4000 * 0.15 + 0.3


def test_a_window_whose_batch_changes_is_not_compared_with_another() -> None:
    control = ControlWindows()
    windows(0.1, 0.15, 5, control, 400)
    while not control.is_open:
        windows(0.1, 0.15, 5, control, 1)
    assert control.add_step(3, 0.1, {"chat": (3, 3)}, is_plain=True, has_prompts=False) == {}
    assert not control.is_open


def test_a_window_that_is_given_up_is_not_compared() -> None:
    control = ControlWindows()
    while not control.is_open:
        windows(0.1, 0.15, 5, control, 1)
    num_done = control.num_done
    windows(0.1, 0.15, 5, control, 3)
    control.give_up()
    assert not control.is_open
    windows(0.1, 0.15, 5, control, 40)
    assert control.num_done == num_done
    # Where none is open, what was gathered stays.
    control.give_up()
    assert len(windows(0.1, 0.15, 5, control, 400)) > 0


def test_an_estimate_is_checked_once_its_interval_is_narrow() -> None:
    comparison = RouteComparison()
    assert comparison.figure().estimate is None
    comparison.add_step(4, 2, 0.15, 0.1)
    figure = comparison.figure()
    assert figure.estimate == pytest.approx(4 / 3)
    assert not figure.is_checked
    for ratio in (1.3, 1.31, 1.29, 1.3):
        comparison.add_window(ratio)
    for nonsense in (0.0, -1.0, math.inf):
        comparison.add_window(nonsense)
    figure = comparison.figure()
    assert figure.is_checked
    assert figure.num_windows == 4
    assert figure.low < 1.3 < figure.high  # type: ignore[operator]
    for ratio in (0.8, 2.0):
        comparison.add_window(ratio)
    assert not comparison.figure().is_checked
