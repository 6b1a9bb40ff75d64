"""`paceline.yaml` of a report: what it recommends, ready to serve, with the reasons as comments."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from paceline.config.server import ServeSettings
from paceline.measure.setting import Setting

WIDTH = 100


def configuration(report: Mapping[str, Any]) -> str:
    """Return the configuration, checked by what the server reads it with.

    Raises:
        ConfigError: it could not be served.
    """
    values = _values(report)
    ServeSettings.of(values)
    routes = values.pop("routes")
    lines = [f"# What `paceline measure` recommends for {report['traffic']['file']}.",
             f"# Measured on {report['machine']} with Paceline {report['paceline_version']}.",
             _dump(values), "routes:"]  # fmt: skip
    for one in report["routes"]:
        reason = textwrap.wrap(one["recommendation"]["reason"], WIDTH - 4)
        lines += [f"  # {line}" for line in reason]
        lines.append(f"  {_flow({one['name']: routes[one['name']]})}")
    return "\n".join(lines) + "\n"


def _values(report: Mapping[str, Any]) -> dict[str, Any]:
    used = {
        setting.draft
        for setting in (Setting.parse(one["recommendation"]["setting"]) for one in report["routes"])
        if setting.needs_model
    }
    models = {one["draft"]: one["name"] for one in report["drafts"] if one["draft"] in used}
    values: dict[str, Any] = {"target": report["target"]["name"]}
    is_one = len(models) == 1
    if is_one:
        values["draft"] = next(iter(models.values()))
    elif models:
        values["drafts"] = models
    values["max_num_seqs"] = max(8, *report["concurrency"])
    values["routes"] = {
        one["name"]: _route(one["recommendation"]["route"], is_one=is_one) for one in report["routes"]
    }
    busiest = max(report["routes"], key=lambda one: one["num_in_traffic"])
    values["default_route"] = busiest["name"]
    values["server"] = {"port": 8000}
    return values


def _route(keys: Mapping[str, Any], *, is_one: bool) -> dict[str, Any]:
    """Return a route's keys; a draft model that is the only one has no name."""
    if not is_one or "drafters" not in keys:
        return dict(keys)
    return {**keys, "drafters": [name.partition(":")[0] for name in keys["drafters"]]}


def _dump(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=WIDTH).rstrip()


def _flow(value: Mapping[str, Any]) -> str:
    """Return a mapping of one key on one line."""
    ((key, inner),) = value.items()
    text = yaml.safe_dump(inner, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return f"{yaml.safe_dump(key).splitlines()[0]}: {text}"
