"""What a policy knows, kept over a restart: of use at once, and given up as quickly as a first guess."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.counts import RESTORED_TOKENS
from paceline.policy.history import History
from paceline.policy.history_store import HistoryStore
from paceline.policy.routes import RouteSettings, RouteTable
from paceline.policy.simulation.result import SimulationResult
from paceline.policy.simulation.simulator import Simulator
from paceline.policy.simulation.traffic import AcceptanceProcess, SimulatedRoute
from paceline.policy.states import PauseReason, RouteState
from tests.policy.scenes import COSTS, GOOD, auto, changes, machine

BAD = AcceptanceProcess(0.04, insight=0.0, shift=4.5)
"""Hardly a draft is right, and the drafter is as confident as ever."""


def serve(
    policy: SpeculationPolicy, acceptance: AcceptanceProcess, steps: int, seed: int = 0, **more: Any
) -> SimulationResult:
    route = {"concurrency": 1, "prompt_tokens": 16, "output_tokens": 150, **more}
    traffic = SimulatedRoute("r", acceptance, **route)
    return Simulator(machine(), [traffic], policy, seed).run(steps=steps)


def restarted(policy: SpeculationPolicy, **settings: Any) -> SpeculationPolicy:
    """A new policy that begins with what this one knows, by way of text."""
    after = auto({"r": RouteSettings(**settings)})
    text = json.dumps(policy.history().to_json())
    assert after.restore(History.read(json.loads(text))) == ("r",)
    return after


def grown(acceptance: AcceptanceProcess, steps: int = 600, **more: Any) -> SpeculationPolicy:
    policy = auto()
    serve(policy, acceptance, steps, **more)
    return policy


def test_a_route_with_good_acceptance_is_speculated_for_at_once() -> None:
    before = grown(GOOD)
    after = restarted(before)
    (known,) = after.report("r").acceptance
    assert known.source == "model"
    assert known.num_verified == pytest.approx(RESTORED_TOKENS)
    assert known.borrowed_from == ()
    rates = (before.acceptance.of("r", "model").calibration.counts.rate, known.low, known.high)
    assert rates[1] < rates[0] < rates[2]
    # A fresh policy waits until an answer has shown that it is long; this one knows their lengths.
    found, fresh = serve(after, GOOD, 40, seed=1), serve(auto(), GOOD, 40, seed=1)
    assert found.mean_draft_length("r", 2, 10) > 2
    assert found.mean_draft_length("r", 2, 10) > fresh.mean_draft_length("r", 2, 10)
    assert found.goodput_between(0, 40) > fresh.goodput_between(0, 40)


def test_a_route_that_was_paused_for_its_acceptance_does_not_pay_again() -> None:
    before = grown(BAD, steps=1000)
    assert before.report("r").reason is PauseReason.ACCEPTANCE
    after = restarted(before)
    report = after.report("r")
    assert (report.state, report.reason) == (RouteState.PAUSED, PauseReason.ACCEPTANCE)
    assert report.sentence.startswith("as before the restart: paused: at 1 sequence")
    found, fresh = serve(after, BAD, 1000, seed=1), serve(auto(), BAD, 1000, seed=1)
    assert changes(after) == []
    drafts = [sum(step.asked.values()) for step in found.steps]
    assert sum(drafts) == 0
    assert found.goodput_between(0, 100) > fresh.goodput_between(0, 100)
    assert after.report("r").probes_lost_s <= 0.011 * found.seconds


def test_a_route_whose_answers_were_short_stays_paused_and_says_so() -> None:
    before = grown(GOOD, output_tokens=5)
    after = restarted(before)
    assert after.report("r").reason is PauseReason.SHORT_OUTPUTS
    assert after.report("r").output_length == 5
    serve(after, GOOD, 200, output_tokens=150)
    assert after.report("r").state is RouteState.SPECULATING


@pytest.mark.parametrize("seed", range(3))
def test_good_acceptance_that_is_gone_is_given_up_as_quickly_as_a_first_guess(seed: int) -> None:
    def paused_at(policy: SpeculationPolicy) -> int:
        serve(policy, BAD, 300, seed=seed)
        return changes(policy)[0].step

    assert paused_at(restarted(grown(GOOD))) <= max(50, paused_at(auto()) + 10)


@pytest.mark.parametrize("seed", range(3))
def test_poor_acceptance_that_is_gone_is_found_out_within_two_hundred_steps(seed: int) -> None:
    after = restarted(grown(BAD, steps=1000))
    serve(after, GOOD, 400, seed=seed)
    (resumed,) = changes(after)
    assert resumed.after == "speculating"
    assert resumed.step <= 200


def test_pauses_for_the_load_are_of_the_moment() -> None:
    before = grown(GOOD, steps=300, concurrency=48)
    assert before.report("r").reason is PauseReason.LOAD
    assert restarted(before).report("r").state is RouteState.SPECULATING


def test_routes_that_were_not_met_again_are_kept_and_those_that_are_no_more_are_not() -> None:
    routes = {"r": RouteSettings(), "gone": RouteSettings()}
    first = SpeculationPolicy(RouteTable(routes), COSTS)
    serve(first, GOOD, 200)
    first.report("gone")
    second = SpeculationPolicy(RouteTable({"r": RouteSettings(), "new": RouteSettings()}), COSTS)
    assert second.restore(first.history()) == ("r",)
    kept = second.history()
    assert set(kept.routes) == {"r"}
    assert kept.routes["r"] == first.history().routes["r"]
    assert second.report("r").acceptance
    assert set(second.history().routes) == {"r"}


def test_a_route_that_is_judged_another_way_now_begins_anew() -> None:
    after = restarted(grown(GOOD), verification="rejection")
    assert after.report("r").acceptance == ()


def test_settings_win_over_a_pause() -> None:
    after = restarted(grown(BAD, steps=1000), speculation="on", draft_length=2)
    assert after.report("r").state is RouteState.SPECULATING


def test_nothing_of_requests_is_in_it() -> None:
    history = grown(GOOD).history().to_json()
    assert set(history) == {"schema", "routes", "pools"}
    assert set(history["routes"]["r"]) == {
        "verification", "paused", "sentence", "credit_s", "output_lengths", "sources",
    }  # fmt: skip
    assert set(history["routes"]["r"]["sources"]["model"]) == {"counts", "theta", "theta_variance", "drafts"}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    history = grown(GOOD).history()
    store = HistoryStore(tmp_path / "deep" / "down", "abc")
    assert store.load() is None
    assert store.save(history) == tmp_path / "deep" / "down" / "abc.json"
    assert store.load() == history
    assert [path.name for path in store.path.parent.iterdir()] == ["abc.json"]
    assert HistoryStore(tmp_path, "other").load() is None


DAMAGE = {
    "cut short": lambda text: text[: len(text) // 2],
    "no text": lambda text: b"\xff\x00".decode("latin-1"),
    "of other models": lambda text: text.replace('"key": "abc"', '"key": "def"'),
    "of another version": lambda text: text.replace('"schema": 1', '"schema": 2'),
    "not a number": lambda text: text.replace('"theta_variance": ', '"theta_variance": NaN, "x": '),
    "a list": lambda text: "[1, 2]",
    "without a history": lambda text: '{"key": "abc"}',
    "too deep": lambda text: "[" * 100_000,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_cannot_be_used_is_refused_with_a_word_and_no_crash(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = HistoryStore(tmp_path, "abc")
    store.save(grown(GOOD, steps=50).history())
    damaged = DAMAGE[name](store.path.read_text())
    assert damaged != store.path.read_text()
    store.path.write_text(damaged)
    with caplog.at_level(logging.WARNING):
        assert store.load() is None
    (record,) = caplog.records
    assert "is not used, and is learned anew" in record.getMessage()


def _with(history: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *parts, last = path.split(".")
    place = history
    for part in parts:
        place = place[part]
    place[last] = value
    return history


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("routes.r.sources.model.theta", 1e9),
        ("routes.r.sources.model.counts.verified", [1.0]),
        ("routes.r.sources.model.counts.accepted", [1e6] * 78),
        ("routes.r.sources.model.drafts", [{"bins": [99]}]),
        ("routes.r.output_lengths", [-1]),
        ("routes.r.paused", "memory"),
        ("routes.r.credit_s", float("inf")),
        ("pools.model.drafts", "none"),
        ("routes.r.text", "more"),
    ],
)
def test_values_out_of_range_are_refused_by_name(path: str, value: Any) -> None:
    history = _with(grown(GOOD, steps=50).history().to_json(), path, value)
    with pytest.raises(ConfigError, match=r"Delete it; the policy begins without one"):
        History.read(history)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="an acceptance history to be saved in"):
        HistoryStore(tmp_path / "file" / "folder", "abc").save(auto().history())
