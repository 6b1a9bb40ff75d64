"""Dashboard and alerts ask for metrics that there are, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
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


def expression(query: str) -> str:
    """Return the PromQL of a query of a Grafana variable or panel, with its variables filled in."""
    inner = re.fullmatch(r"label_values\((.*), \w+\)", query)
    return (inner[1] if inner else query).replace("$__rate_interval", "5m").replace("$route", ".*")


def selectors(query: str) -> Iterator[Any]:
    """Yield the series that a query selects; ValueError where it is no PromQL, or types do not fit."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression(query)), visit)
    yield from found


@pytest.mark.parametrize("query", QUERIES)
def test_every_query_is_promql_over_series_that_are_exposed(server: Running, query: str) -> None:
    exposed_labels = exposed(server)
    found = list(selectors(query))
    assert found
    for selector in found:
        labels = exposed_labels[selector.name]
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert not labels or asked <= labels | {"le"}, selector.name


def test_a_broken_query_is_noticed() -> None:
    for broken, word in (("sum by (route (up)", "parenthesis"), ("rate(up)", "expected type matrix")):
        with pytest.raises(ValueError, match=word):
            list(selectors(broken))


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
        assert promql_parser.parse_duration(rule["for"]).total_seconds() > 0
        text = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= set(re.findall(r"\w+", rule["expr"]))
        filled = re.findall(r"\{\{ \$(?:value|labels\.\w+) \}\}", text)
        assert text.count("{{") == text.count("}}") == len(filled)
