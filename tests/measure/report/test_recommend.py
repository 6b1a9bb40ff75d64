"""What is recommended, and the configuration of it, by what was timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.measure.report.scenes import report

from paceline.config.file import load_serve_config
from paceline.measure.report.build import crossing_of, schema
from paceline.measure.report.configuration import configuration

GAINS = {1: {"model:4": 1.6, "auto": 1.58}, 8: {"model:2": 1.1, "auto": 1.08}}


def recommended(folder: Path, loads: dict[int, dict[str, float]], **more: Any) -> dict[str, Any]:
    found = report(folder, {"chat": loads}, **more)
    jsonschema_rs.validator_for(schema()).validate(found)
    recommendation: dict[str, Any] = found["routes"][0]["recommendation"]
    return recommendation


def test_the_policy_is_served_where_it_comes_near_the_best(tmp_path: Path) -> None:
    found = recommended(tmp_path, GAINS)
    assert found["route"] == {"speculation": "auto", "drafters": ["suffix", "model"], "max_draft_length": 8}
    assert "1.58x at 1 client, 1.08x at 8 clients, measured; the best fixed settings there" in found["reason"]


def test_where_the_policy_alone_was_timed_nothing_else_is_named(tmp_path: Path) -> None:
    found = recommended(tmp_path, {n: {"auto": 1.4, "forecast model:2": 1.3} for n in (1, 8)})
    assert found["reason"] == "1.40x at 1 client, 1.40x at 8 clients, measured"


def test_the_policy_is_served_where_fixed_lengths_lose_at_some_load(tmp_path: Path) -> None:
    loads = {1: {"model:4": 1.6, "auto": 1.4}, 8: {"model:4": 0.8, "auto": 1.0}}
    assert recommended(tmp_path, loads)["setting"] == "auto"


def test_a_fixed_length_is_served_where_it_is_clearly_ahead_at_every_load(tmp_path: Path) -> None:
    loads = {1: {"model:3": 1.6, "auto": 1.3}, 8: {"model:3": 1.1, "auto": 1.05}}
    assert recommended(tmp_path, loads)["route"] == {
        "speculation": "on", "drafters": ["model"], "draft_length": 3,
    }  # fmt: skip


def test_nothing_is_served_where_nothing_gains(tmp_path: Path) -> None:
    loads = {1: {"model:1": 0.9, "auto": 1.01}, 8: {"model:1": 0.7, "auto": 1.0}}
    found = recommended(tmp_path, loads, matches="+---" * 8)
    assert found["route"] == {"speculation": "off"}
    assert not found["speculates"]
    assert "nothing gains 3%" in found["reason"]
    assert "a drafted token stands in 0.23 of cases, and pays from 0.40 on" in found["reason"]


def test_the_policy_is_not_served_where_it_is_shown_to_lose(tmp_path: Path) -> None:
    loads = {1: {"model:4": 1.3, "auto": 1.3}, 8: {"model:4": 0.8, "auto": 0.8}}
    found = recommended(tmp_path, loads)
    assert found["setting"] == "off"
    assert "none holds 0.97x" in found["reason"]


def test_what_was_not_timed_is_said_to_be_forecast(tmp_path: Path) -> None:
    found = recommended(tmp_path, {1: {"forecast model:4": 1.6}, 8: {"forecast model:2": 1.1}})
    assert found["setting"] == "auto"
    assert not found["is_measured"]
    assert "not timed" in found["reason"]


def test_the_configuration_is_one_that_the_server_reads(tmp_path: Path) -> None:
    off = {1: {"model:1": 0.9, "auto": 1.0}, 8: {"model:1": 0.7, "auto": 1.0}}
    found = report(tmp_path, {"chat": GAINS, "batch": off})
    path = tmp_path / "paceline.yaml"
    path.write_text(configuration(found))
    settings = load_serve_config(path, environ={}).engine
    assert (settings.target, settings.draft) == ("big", "folder/small")
    assert settings.routes["chat"].drafters == ("suffix", "model")
    assert str(settings.routes["batch"].speculation) == "off"
    assert settings.default_route == "batch"  # the one with the most lines
    assert "# 1.58x at 1 client" in path.read_text()


def test_a_draft_model_that_no_route_is_served_with_is_not_loaded(tmp_path: Path) -> None:
    off = {1: {"model:1": 0.9, "auto": 1.0}, 8: {"model:1": 0.7, "auto": 1.0}}
    assert "draft:" not in configuration(report(tmp_path, {"batch": off}))


@pytest.mark.parametrize(
    ("speedups", "crossing"),
    [
        ([(1, 1.5), (4, 0.5)], 2.0),
        ([(1, 1.5), (4, 1.2)], None),
        ([(1, 0.9), (4, 1.2)], 1.0),
        ([(8, 0.9), (1, 1.1), (4, 1.1)], 2**2.5),
        ([], None),
    ],
)
def test_the_crossing_lies_where_the_speedup_falls_to_one(
    speedups: list[tuple[int, float]], crossing: float | None
) -> None:
    assert crossing_of(speedups) == pytest.approx(crossing)
