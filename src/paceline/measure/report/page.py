"""A report as one HTML file that needs nothing beside it: no script, no network, no other file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from paceline.measure.report.pictures import pictures
from paceline.measure.report.tables import routes_table, short, tables
from paceline.measure.report.words import one_page


def page(report: Mapping[str, Any], configuration: str) -> str:
    """Return the page of a report.

    Args:
        report: as `build.build` returns it.
        configuration: what it recommends, as YAML.
    """
    folder = resources.files("paceline.measure.report")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(folder.joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        report=report,
        target=short(report["target"]["name"]),
        drafts=[short(one["name"]) for one in report["drafts"]],
        style=folder.joinpath("page.css").read_text(encoding="utf-8"),
        first=routes_table(report),
        parts=one_page(report),
        tables=tables(report),
        pictures=pictures(report),
        configuration=configuration,
        minutes=report["spent_s"] / 60,
    )
