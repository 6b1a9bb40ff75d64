"""From confidence to acceptance: what is learned, how fast, and what is borrowed."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.policy.acceptance import Acceptance
from paceline.policy.calibration import Calibration
from paceline.policy.counts import Counts, bin_of
from paceline.records import FinishReason
from paceline.step_records import SequenceStep


def feed(calibration: Calibration, confidence: float, chance: float, times: int, position: int = 0) -> None:
    rng = np.random.default_rng(7)
    for _ in range(times):
        calibration.observe([position], [bin_of(confidence)], [bool(rng.random() < chance)])


def test_before_anything_is_seen_a_drafter_is_believed() -> None:
    calibration = Calibration(Counts())
    for confidence in (0.1, 0.5, 0.9):
        assert calibration.chance(0, confidence) == pytest.approx(confidence, abs=0.08)


def test_a_drafter_that_thinks_too_much_of_itself_is_found_out() -> None:
    calibration = Calibration(Counts())
    feed(calibration, 0.9, 0.5, 400)
    assert calibration.chance(0, 0.9) == pytest.approx(0.5, abs=0.1)


def test_positions_and_bins_are_told_apart() -> None:
    calibration = Calibration(Counts())
    for _ in range(40):
        feed(calibration, 0.9, 0.95, 10, position=0)
        feed(calibration, 0.9, 0.6, 10, position=2)
        feed(calibration, 0.3, 0.2, 10, position=0)
    assert calibration.chance(0, 0.9) > calibration.chance(2, 0.9) + 0.15
    assert calibration.chance(0, 0.3) < 0.35


def test_a_collapse_is_believed_within_some_twenty_tokens_and_a_single_miss_is_not() -> None:
    calibration = Calibration(Counts())
    feed(calibration, 0.9, 0.9, 500)
    before, num_breaks = calibration.chance(0, 0.9), calibration.num_breaks
    calibration.observe([0], [bin_of(0.9)], [False])
    assert calibration.chance(0, 0.9) > before - 0.06
    for _ in range(24):
        calibration.observe([0], [bin_of(0.9)], [False])
    assert num_breaks == 0
    assert calibration.num_breaks >= 1
    assert calibration.chance(0, 0.9) < 0.3


def test_steady_traffic_is_no_break() -> None:
    calibration = Calibration(Counts())
    for chance in (0.95, 0.7, 0.4, 0.1):
        feed(calibration := Calibration(Counts()), chance, chance, 1500)
        assert calibration.num_breaks <= 1


def step(
    confidences: tuple[float, ...], num_drafted: int, num_accepted: int, num_new: int, **more: object
) -> SequenceStep:
    return SequenceStep(
        "r", 0, "chat", "model", 100, 1, True, 4, num_drafted, num_accepted, num_new, num_new,
        confidences=confidences, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_only_what_was_judged_counts() -> None:
    acceptance = Acceptance()
    source = acceptance.of("chat", "model")
    # Two of three verified stand, the fourth was drawn but not verified.
    source.observe(step((0.9, 0.8, 0.7, 0.1), 3, 2, 3))
    assert source.calibration.counts.total == pytest.approx(3, abs=0.05)
    # The answer ended with an accepted draft: those behind it were never compared.
    source.observe(step((0.9, 0.9, 0.9), 3, 1, 1, finish_reason=FinishReason.STOP))
    assert source.calibration.counts.total == pytest.approx(4, abs=0.05)
    assert source.rate == pytest.approx(3 / 4, abs=0.02)
    assert source.replay.num_kept == 2


def test_drafts_without_confidence_are_counted_by_position() -> None:
    acceptance = Acceptance()
    source = acceptance.of("chat", "ngram")
    for i in range(300):
        source.observe(step((), 3, 3 if i % 2 else 1, 4 if i % 2 else 2))
    assert source.calibration.chance(0, None) > 0.9
    assert source.calibration.chance(1, None) == pytest.approx(0.5, abs=0.12)


def test_a_route_without_history_borrows_from_its_neighbours_and_says_so() -> None:
    acceptance = Acceptance()
    chat = acceptance.of("chat", "model")
    for _ in range(200):
        chat.observe(step((0.9, 0.9), 2, 0, 1))
    fresh = acceptance.of("code", "model")
    assert fresh.calibration.chance(0, 0.9) < 0.3
    (figure,) = acceptance.figures("code")
    assert figure.borrowed_from == ("chat",)
    (own,) = acceptance.figures("chat")
    assert own.borrowed_from == ()
    assert own.low < own.rate + 0.05 < own.high + 0.1


def test_scored_text_teaches_each_position() -> None:
    source = Acceptance().of("chat", "model")
    source.observe_scored([(0.9, True)] * 30 + [(0.2, False)] * 10)
    assert source.calibration.counts.total == pytest.approx(40, rel=0.05)
    assert source.replay.num_kept > 5
    assert source.rate == pytest.approx(0.75, abs=0.1)


def test_drift_is_told_once_each_time_it_happens() -> None:
    source = Acceptance().of("chat", "model")
    for _ in range(200):
        source.observe(step((0.9, 0.9), 2, 2, 3))
    assert source.drift() is None
    for _ in range(60):
        source.observe(step((0.9, 0.9), 2, 0, 1))
    slow, fast = source.drift()  # type: ignore[misc]
    assert fast < slow
    assert source.drift() is None
