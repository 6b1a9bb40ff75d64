"""What is shared out to replicas, and what of theirs is put together again."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from paceline.config.server import ServeSettings
from paceline.errors import ConfigError
from paceline.ray.placement import Share, share_of
from paceline.ray.series import counted, exposition, merged
from paceline.ray.settings import of_replica, with_share
from paceline.ray.views import merged_decisions, merged_routes, merged_status


@pytest.mark.parametrize(
    ("node_cpus", "num_replicas", "share"),
    [
        ([2], 2, Share(1, 1)),
        ([8], 3, Share(2, 2)),
        ([8, 8, 8], 4, Share(4, 4)),
        ([16, 4], 2, Share(8, 8)),
        ([2], 3, Share(1, 0.5)),
        ([1, 1], 4, Share(1, 0.5)),
    ],
)
def test_threads_are_as_many_as_let_all_have_a_place(
    node_cpus: list[float], num_replicas: int, share: Share
) -> None:
    assert share_of(node_cpus, num_replicas, None) == share


def test_threads_that_were_named_are_kept_or_refused() -> None:
    assert share_of([8], 2, 4) == Share(4, 4)
    with pytest.raises(ConfigError, match=r"3 replicas of 4 threads each, on nodes of 8, 2 CPUs"):
        share_of([8, 2], 3, 4)


def settings(path: Path) -> ServeSettings:
    values = {
        "target": "anything.gguf",
        "server": {"state_path": str(path.with_suffix(".db"))},
        "capture": {"path": str(path.with_name("traffic.jsonl")), "share": 0.5, "max_bytes": 100_000},
    }
    return ServeSettings.of(values, path)


def test_each_replica_writes_files_of_its_own(tmp_path: Path) -> None:
    whole = settings(tmp_path / "paceline.yaml")
    one = of_replica(whole, 1, 4)
    assert whole.engine.decision_log == tmp_path / "paceline.decisions.jsonl"
    assert one.engine.decision_log == tmp_path / "paceline.decisions.1.jsonl"
    assert one.capture is not None
    assert one.capture.path == tmp_path / "traffic.1.jsonl"
    assert one.capture.max_bytes == 25_000
    assert one.state_path is None, "only the hub writes changes down"
    assert one.path is None
    assert one.read_again is None


def test_a_share_leaves_what_the_configuration_says() -> None:
    plain = ServeSettings.of({"target": "anything.gguf"})
    assert with_share(plain, 3, 1000).engine.kv_memory == 1000
    assert with_share(plain, 3, None).engine.kv_memory is None
    said = ServeSettings.of({"target": "anything.gguf", "kv_memory": "2MiB"})
    shared = with_share(said, 3, 1000).engine
    assert (shared.kv_memory, shared.threads) == (2 * 2**20, 3)


def registry(count: int) -> CollectorRegistry:
    found = CollectorRegistry()
    Counter("paceline_answers", "Answers.", ("route",), registry=found).labels("chat").inc(count)
    times = Histogram("paceline_times", "Times.", buckets=(1.0, 2.0), registry=found)
    times.observe(count)
    return found


def test_series_of_replicas_are_told_apart_and_add_up() -> None:
    families = merged({1: registry(3).collect(), 0: registry(2).collect()})
    text = exposition(families + counted({"ready": 1, "loading": 1, "lost": 4})).decode()
    assert text.count("# TYPE paceline_answers_total counter") == 1
    assert 'paceline_answers_total{replica="0",route="chat"} 2.0' in text
    assert 'paceline_answers_total{replica="1",route="chat"} 3.0' in text
    assert 'paceline_times_bucket{le="2.0",replica="0"} 1.0' in text
    assert 'paceline_times_bucket{le="2.0",replica="1"} 0.0' in text
    assert 'paceline_replicas{state="loading"} 1.0' in text
    assert "paceline_replicas_lost_total 4.0" in text
    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(names) == len(set(names))


def route(count: int, state: str) -> dict[str, object]:
    numbers = {"num_answers": count, "num_output_tokens": 10 * count}
    return {"name": "chat", "report": {"state": state}, "acceptance_length": None, **numbers}


def test_a_route_is_the_first_replicas_with_the_sums_of_all() -> None:
    (found,) = merged_routes({1: [route(3, "paused")], 0: [route(2, "speculating")]})
    assert (found["num_answers"], found["num_output_tokens"]) == (5, 50)
    assert found["report"] == {"state": "speculating"}
    assert {number: one["report"]["state"] for number, one in found["replicas"].items()} == {
        "0": "speculating",
        "1": "paused",
    }
    assert merged_routes({}) == []


def test_decisions_of_all_are_in_order_and_signed() -> None:
    decisions = {0: [{"time": 1.0}, {"time": 3.0}], 1: [{"time": 2.0}]}
    assert merged_decisions(decisions, 2) == [
        {"time": 2.0, "replica": "1"},
        {"time": 3.0, "replica": "0"},
    ]


def test_the_page_has_the_sums_of_the_engines() -> None:
    def view(count: int) -> dict[str, object]:
        engine = {"num_running": count, "kv": {"num_blocks": 100 * count}}
        return {"model": "m", "routes": [route(count, "off")], "engine": engine, "decisions": []}

    found = merged_status({0: view(1), 1: view(2)}, 10)
    assert found["engine"] == {"num_running": 3, "kv": {"num_blocks": 300}}
    assert found["replicas"] == ["0", "1"]
    assert found["routes"][0]["num_answers"] == 3
