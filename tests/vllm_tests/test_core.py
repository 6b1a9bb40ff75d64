"""The engine core's end of the bridge: files in and out, while steps run and while there are none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.config.routes import RouteSettings
from paceline.errors import ConfigError
from paceline.records import FinishReason
from paceline.vllm.bridge import Bridge, BridgeOptions
from paceline.vllm.core import RouteCore
from paceline.vllm.engine_file import EngineFile, read_engine
from paceline.vllm.facts import EngineFacts
from paceline.vllm.routes_file import RouteEntry, RoutesFile, write_routes
from paceline.vllm.steps import Candidate, Load, Outcome, ScheduledPart

FACTS = EngineFacts(rank=3, method="ngram", max_draft_length=4, parts={"model": "m"})
LOAD = Load(1, 0, 100, 10, 0, is_short_of_blocks=False)


def put(folder: Path, version: int, word: str) -> None:
    entries = {"chat": RouteEntry(RouteSettings(speculation=word), "ann")}
    write_routes(Bridge(folder).routes_path, RoutesFile(version, "chat", entries))


@pytest.fixture
def core(tmp_path: Path) -> Iterator[RouteCore]:
    put(tmp_path, 1, "on")
    found = RouteCore(BridgeOptions(tmp_path), FACTS)
    yield found
    found.close()


def wait_for(core: RouteCore, so: Callable[[EngineFile], bool]) -> EngineFile:
    """Return what the engine core wrote, once it is so; for ten seconds at most, of which it needs none."""
    ends = time.monotonic() + 10
    while not so(found := read_engine(core.bridge.engine_path(3))):
        assert time.monotonic() < ends, found
        time.sleep(0.01)
    return found


def step(core: RouteCore, num_drafted: int) -> None:
    part = ScheduledPart("a", 11, 1, num_drafted, has_output=True)
    planned, _ = core.begin([part], [Candidate("a", 12, 2, 50)], LOAD, time.perf_counter(), 4)
    assert planned is not None
    core.end(
        planned,
        {"a": Outcome(num_drafted, num_drafted, num_drafted + 1, is_finished=False)},
        time.perf_counter(),
    )


def test_it_says_what_it_is_before_any_step(core: RouteCore) -> None:
    found = wait_for(core, lambda one: True)
    assert (found.rank, found.method, found.drafter, found.routes_version) == (3, "ngram", "suffix", 1)
    assert found.reports["chat"].speculation == "on"


def test_counts_come_out_while_it_runs(core: RouteCore) -> None:
    core.add("a", {"paceline_route": "chat"}, 10)
    step(core, 0)
    assert core.draft_length("a") == 4
    step(core, 4)
    found = wait_for(core, lambda one: one.counts.num_steps == 2)
    assert found.counts.routes["chat"].drafts["suffix"].num_accepted == 4
    assert (found.num_running, found.num_kv_blocks_used) == (1, 10)
    core.finished("a", FinishReason.STOP, is_in_step=False)
    found = wait_for(core, lambda one: not one.num_running)
    assert found.counts.routes["chat"].num_answers == {"stop": 1}


def test_routes_are_followed_while_there_is_no_step(core: RouteCore, tmp_path: Path) -> None:
    put(tmp_path, 2, "off")
    found = wait_for(core, lambda one: one.routes_version == 2)
    assert found.reports["chat"].state.value == "off"
    (line,) = core.bridge.decisions_path(3).read_text().splitlines()
    assert json.loads(line)["by"] == "ann"
    (tmp_path / "routes.json").write_text("{")
    assert "JSONDecodeError" in str(wait_for(core, lambda one: one.routes_error is not None).routes_error)


def test_a_policy_that_fails_is_said_and_stops_nobody(
    core: RouteCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by nothing")

    core.add("a", None, 10)
    step(core, 0)
    monkeypatch.setattr(core.driver.policy, "plan", fail)
    planned, drafts = core.begin([], [Candidate("a", 12, 2, 50)], LOAD, 0.0, 4)
    assert (planned, drafts.depth, core.draft_length("a")) == (None, 0, 0)
    monkeypatch.undo()
    assert "by nothing" in wait_for(core, lambda one: bool(one.errors)).errors[0]
    step(core, 0)
    assert core.draft_length("a") == 4


def test_it_does_not_start_without_routes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        RouteCore(BridgeOptions(tmp_path), FACTS)
    (tmp_path / "routes.json").write_text("[]")
    with pytest.raises(ConfigError, match="format 'list'"):
        RouteCore(BridgeOptions(tmp_path), FACTS)


def test_what_it_learned_is_on_disk_when_it_has_stopped(tmp_path: Path) -> None:
    put(tmp_path, 1, "auto")
    core = RouteCore(BridgeOptions(tmp_path), FACTS)
    core.add("a", None, 10)
    for _ in range(70):
        step(core, 0)
    core.close()
    assert json.loads(core.bridge.policy_path(3).read_text())["costs"] is not None
    again = RouteCore(BridgeOptions(tmp_path), FACTS)
    assert not again.driver.policy.costs.is_guess
    again.close()
