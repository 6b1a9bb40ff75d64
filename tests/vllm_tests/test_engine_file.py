"""What an engine core counted arrives as it was counted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.routes import RouteSettings
from paceline.errors import ConfigError
from paceline.metrics.counts import Counts
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.interface import SequenceView, StepView
from paceline.policy.routes import RouteTable
from paceline.records import SpeculationParams
from paceline.vllm.bridge import Bridge
from paceline.vllm.engine_file import EngineFile, EngineWriter, RouteLoad, read_engine
from paceline.vllm.engine_json import counts_to_json
from tests.metrics.test_counts import part, result, step


def lived() -> tuple[Counts, SpeculationPolicy]:
    """Return counts and a policy that have seen something of everything."""
    counts = Counts(("batch",))
    policy = SpeculationPolicy(RouteTable({"chat": RouteSettings(), "batch": RouteSettings()}, "batch"))
    policy.log.add_listener(counts.on_decision)
    views = [
        SequenceView(
            number, "chat", SpeculationParams(enabled="route"), 9, 20, 30, ("model",), holds_drafts=True
        )
        for number in range(2)
    ]
    for now in range(40):
        policy.plan(StepView(float(now), views))
        record = step(
            float(now), *(part(number=n, draft_length=3, num_drafted=3, num_accepted=n) for n in (0, 1))
        )
        policy.on_step(record)
        counts.on_step(record)
    policy.set_route("chat", RouteSettings(speculation="off"), by="ann", now=41.0)
    for observer in (counts, policy):
        observer.on_finish(result(80))
    return counts, policy


def engine(rank: int = 0) -> EngineFile:
    counts, policy = lived()
    return EngineFile(
        rank=rank, pid=17, started_at=1.5, written_at=2.5, vllm_version="0.32.0", method="draft_model",
        drafter="model", max_draft_length=4, is_async=False, skips_drafting=True, routes_version=3,
        routes_error="it was broken", num_running=2, num_waiting=1, num_preemptions=5, num_kv_blocks=100,
        num_kv_blocks_used=40, counts=counts, loads={"chat": RouteLoad(2, 1, 5, 9)}, reports=policy.reports(),
        unknown_routes={"chta": 2}, costs=policy.knowledge(), errors=("the policy failed: ...",),
    )  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    bridge, now = Bridge(tmp_path), engine()
    assert EngineWriter(bridge.engine_path(0), now.to_json).write(0.0)
    found = read_engine(bridge.engine_path(0))
    assert counts_to_json(found.counts) == counts_to_json(now.counts)
    chat = found.counts.routes["chat"]
    assert (chat.drafts["model"].num_drafted, chat.drafts["model"].num_accepted) == (240, 40)
    assert chat.ttft.buckets() == now.counts.routes["chat"].ttft.buckets()
    assert found.counts.decisions == now.counts.decisions != {}
    assert found.reports == now.reports
    assert found.reports["chat"].acceptance[0].by_position
    same = [field.name for field in dataclasses.fields(EngineFile) if field.name != "counts"]
    assert {name: getattr(found, name) for name in same} == {name: getattr(now, name) for name in same}


def test_ranks_are_those_that_wrote(tmp_path: Path) -> None:
    bridge, now = Bridge(tmp_path / "none yet"), engine()
    assert bridge.ranks() == []
    for rank in (10, 2):
        EngineWriter(bridge.engine_path(rank), now.to_json).write(0.0)
    (bridge.folder / "engine-x.json").write_text("{}")
    assert bridge.ranks() == [2, 10]


def test_it_is_written_seldom_oftener_while_nothing_runs_and_at_once_where_that_is_urgent(
    tmp_path: Path,
) -> None:
    now = engine()
    num_looks = 0

    def look() -> dict[str, Any]:
        nonlocal num_looks
        num_looks += 1
        return now.to_json()

    writer = EngineWriter(tmp_path / "engine-0.json", look, every_s=0.25, idle_every_s=0.125)
    written = [at for at in (0.0, 0.1, 0.24, 0.25, 0.3, 0.5) if writer.write(at)]
    assert written == [0.0, 0.25, 0.5]
    assert [at for at in (0.6, 0.625, 0.7, 0.75) if writer.write(at, is_idle=True)] == [0.625, 0.75]
    assert writer.write(0.76, is_urgent=True)
    assert num_looks == 6


def test_a_file_that_cannot_be_written_is_said_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.write_text("in the way")
    now = engine()
    writer = EngineWriter(folder / "engine-0.json", now.to_json)
    assert not writer.write(0.0)
    assert writer.fault is not None
    assert "cannot be written" in writer.fault
    folder.unlink()
    assert writer.write(1.0)
    assert writer.fault is None


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}', '{"format": 1, "rank": 0, "counts": []}'])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "engine-0.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="engine core"):
        read_engine(path)


def test_it_is_json_that_anybody_can_read() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads(json.dumps(engine().to_json()), parse_constant=refuse)
