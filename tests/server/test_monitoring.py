"""Dashboard and alerts ask for metrics that there are, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from paceline.metrics.collector import PacelineCollector
from paceline.metrics.counts import Counts
from tests.server.running import Running

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
QUERIES = [rule["expr"] for rule in RULES]
QUERIES += [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
QUERIES += [one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]


def exposed(server: Running) -> dict[str, set[str]]:
    """Return label names by the name of a sample; of families that have no sample yet too."""
    text = server.http().get("/metrics").text
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        names = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "info": ["_info"]}
        for suffix in names.get(family.type, [""]):
            found.setdefault(family.name + suffix, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_metric_that_is_asked_for_is_exposed(server: Running) -> None:
    names = exposed(server)
    asked = {name for query in QUERIES for name in re.findall(r"paceline_\w+", query)}
    assert len(asked) > 30
    assert asked <= names.keys()


def test_every_metric_that_is_exposed_is_on_the_dashboard(server: Running) -> None:
    queries = " ".join(QUERIES)
    missing = {name.removesuffix("_bucket") for name in exposed(server)} - set(
        re.findall(r"paceline_\w+", queries)
    )
    assert {name for name in missing if not name.endswith(("_count", "_sum", "_created"))} == {
        name.removesuffix("_bucket") for name in re.findall(r"paceline_\w+_bucket", queries)
    }


def test_the_documents_name_every_metric() -> None:
    page = (FOLDER.parents[1] / "docs" / "server.md").read_text()
    for family in PacelineCollector(Counts(("chat",)), {"target": ("a", "b")}).collect():
        assert family.name in page, family.name


def test_panels_and_alerts_are_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for rule in RULES:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "description"}
