"""When what the policy knows is written down, and by whom it is read again."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.clock import ManualClock
from paceline.config.engine import EngineSettings
from paceline.config.server import ServeSettings
from paceline.engine import history as engine_history
from paceline.engine.history import KeptHistory, history_store
from paceline.engine.observer import Observers
from paceline.policy.history_store import HistoryStore
from paceline.policy.routes import RouteSettings
from paceline.policy.simulation.simulator import Simulator
from paceline.policy.simulation.traffic import SimulatedRoute
from tests.policy.scenes import GOOD, auto, machine


class Served:
    """A policy that serves simulated traffic, with its history kept."""

    def __init__(self, store: HistoryStore) -> None:
        self.clock = ManualClock()
        self.policy = auto({"r": RouteSettings()})
        self.kept = KeptHistory(self.policy, store, clock=self.clock, every_s=60.0)
        observers = self.observers = Observers()
        observers.add(self.policy)
        observers.add(self.kept)

        class Told:
            """The policy, and those who are told beside it."""

            def __init__(self, policy: Any) -> None:
                self.plan = policy.plan

            def on_step(self, record: Any) -> None:
                observers.tell(lambda one: one.on_step(record))

            def on_finish(self, result: Any) -> None:
                observers.tell_result(result)

        traffic = SimulatedRoute("r", GOOD, concurrency=1, prompt_tokens=16, output_tokens=50)
        self._simulator = Simulator(machine(), [traffic], Told(self.policy))  # type: ignore[arg-type]

    def serve(self, steps: int) -> None:
        self._simulator.run(steps=steps)

    def wait(self) -> None:
        if self.kept._writing is not None:
            self.kept._writing.join()


def test_it_is_written_every_so_often_and_at_the_end_and_read_at_the_next_start(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path, "key")
    first = Served(store)
    first.serve(50)
    assert not store.path.exists()
    first.clock.advance(61.0)
    first.serve(1)
    first.wait()
    early = store.load()
    assert early is not None
    first.serve(100)
    assert store.load() == early
    first.observers.tell_end()
    assert store.load() == first.policy.history() != early
    second = Served(store)
    assert second.policy.report("r").output_length == 50
    before = store.path.stat().st_mtime_ns
    second.observers.tell_end()
    assert store.path.stat().st_mtime_ns == before, "nothing was served, so nothing is new"


def test_a_folder_that_cannot_be_written_is_said_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    served = Served(HistoryStore(tmp_path / "file", "key"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            served.clock.advance(61.0)
            served.serve(1)
            served.wait()
        served.observers.tell_end()
    read, written = (record.getMessage() for record in caplog.records)
    assert "is not used, and is learned anew" in read
    assert "an acceptance history to be saved in" in written


def test_its_key_is_what_acceptance_depends_on_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def key(**more: str) -> str:
        parts = {"target": "a", "draft": "b", "machine": "m", "threads": "2", "weights": "file", **more}
        monkeypatch.setattr(engine_history, "describe", lambda *given: parts)
        return history_store(None, {}, EngineSettings(target="t")).key  # type: ignore[arg-type]

    monkeypatch.setattr(engine_history, "cache_dir", lambda: tmp_path)
    same = key()
    assert key(machine="other", threads="64") == same
    assert len({same, key(target="c"), key(draft="c"), key(weights="int8")}) == 4


def test_engines_of_the_same_models_write_over_nothing_of_each_other(tmp_path: Path) -> None:
    stores = [HistoryStore(tmp_path, "key", number) for number in (0, 1)]
    served = [Served(store) for store in stores]
    for number, one in enumerate(served):
        one.serve(50 + 50 * number)
        one.observers.tell_end()
    learned = [one.policy.history() for one in served]
    assert learned[0] != learned[1]
    assert [store.load() for store in stores] == learned, "a number's next engine goes on"


def test_an_engine_without_a_history_begins_with_the_latest_of_the_same_models(tmp_path: Path) -> None:
    alone, first, second = (HistoryStore(tmp_path, "key", number) for number in (None, 0, 1))
    assert second.load() is None
    other = Served(HistoryStore(tmp_path, "kez", 0))
    other.serve(50)
    other.observers.tell_end()
    assert second.load() is None, "other models say nothing of these"
    for number, store in enumerate((alone, first)):
        served = Served(store)
        served.serve(50 + 50 * number)
        path = store.save(served.policy.history())
        os.utime(path, ns=(number, number))
    assert alone.load() != first.load()
    assert second.load() == first.load()
    os.utime(alone.path, ns=(2, 2))
    assert second.load() == alone.load()
    first.path.unlink()
    assert first.load() == alone.load()


@pytest.mark.parametrize(
    ("keys", "is_kept"),
    [
        ({}, True),
        ({"acceptance_history": False}, False),
        ({"calibration": "off"}, False),
        ({"calibration": "off", "acceptance_history": True}, True),
    ],
)
def test_a_server_keeps_it_unless_told_otherwise(keys: dict[str, Any], is_kept: bool) -> None:
    routes = {"chat": {"drafters": ["suffix"]}}
    assert ServeSettings.of({"target": "t", "routes": routes, **keys}).engine.acceptance_history is is_kept
    assert EngineSettings(target="t").acceptance_history is False
