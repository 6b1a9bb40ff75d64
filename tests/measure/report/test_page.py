"""The page of a report: whole in itself, every figure escaped, and what has to be on it. `verify/report.py`
opens it in a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.measure.report.scenes import report

from paceline.measure.report.configuration import configuration
from paceline.measure.report.page import page
from paceline.measure.report.svg import Line, bars, line_plot, nice
from paceline.measure.report.write import CONFIG_FILE, HTML_FILE, JSON_FILE, write

SPEEDS = {
    "chat": {1: {"model:4": 1.6, "auto": 1.58}, 8: {"model:2": 1.1, "auto": 1.05}},
    "batch": {1: {"model:1": 0.8, "auto": 1.0}, 8: {"model:1": 0.7, "auto": 1.0}},
}
VOID = {"meta", "link", "br"}


class Checker(HTMLParser):
    """Notes what a page would fetch or run, and elements that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def rendered(folder: Path, **changes: Any) -> str:
    found = {**report(folder, SPEEDS), **changes}
    return page(found, configuration(found))


def test_the_page_needs_nothing_beside_it(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    assert checker.addresses == ["data:,"]
    assert not checker.tags & {"script", "iframe", "img", "object", "form"}
    assert re.findall(r"(?:https?:|wss?:)?//\w[\w.-]*\.\w+|url\(|@import", text) == []
    assert "default-src 'none'" in text


def test_tables_come_before_pictures_and_the_one_page_before_both(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    wanted = [
        "What to serve", "What it buys", "What it costs", "When it stops helping", "How to reverse it",
        "Speed, without and with drafts", "How often drafts stand", "Acceptance by position</h2>",
        "What it computes", "The texts", "Memory</h2>", "Speed over concurrency",
        "Where a step&#39;s time goes", "The configuration",
    ]  # fmt: skip
    places = [text.index(f">{one}") for one in wanted]
    assert places == sorted(places)
    assert text.index("<table") < text.index("<svg")


def test_the_one_page_has_this_run_s_figures(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    assert "1.58x at 1 client (10.0 to 15.7 tokens/s)" in text
    assert "Without drafts: batch." in text
    assert "Outputs identical: 108 of 108" in text
    assert "paceline routes set chat speculation=off" in text
    assert "Memory: 100 MB of weights for folder/small" in text
    assert "2 with tools" in text


def test_a_run_that_differed_is_marked(tmp_path: Path) -> None:
    found = report(tmp_path, SPEEDS)
    assert 'class="seal bad"' not in page(found, "")
    assert 'class="seal bad"' in page({**found, "num_identical": 5}, "")


def test_text_of_others_is_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    text = rendered(tmp_path, machine=evil)
    assert evil not in text
    assert "&lt;script&gt;" in text


def test_every_cell_says_its_column_for_narrow_screens(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    assert text.count("<td ") == text.count("<td data-label=")
    assert text.count('<th scope="row">') > 20


def test_the_files_are_written_together(tmp_path: Path) -> None:
    found = report(tmp_path, SPEEDS)
    write(found, tmp_path)
    assert json.loads((tmp_path / JSON_FILE).read_text()) == found
    assert (tmp_path / CONFIG_FILE).read_text() in (tmp_path / HTML_FILE).read_text().replace("&#39;", "'")


@pytest.mark.parametrize("value", [0.0, 0.0042, 0.97, 1.0, 7.3, 99.0, 1234.0])
def test_scales_end_at_a_round_number_above(value: float) -> None:
    assert value <= nice(value) * 1.001
    assert nice(value) <= max(1.0, 2 * value)


def test_pictures_hold_one_point_and_no_extent() -> None:
    text = line_plot([Line("<a>", [(1.0, 0.0)], 1)], label="l", x_label="x", y_label="y", is_log=True)
    assert "nan" not in text
    assert "&lt;a&gt;" in text
    assert "<rect" in bars([("a", {"p": 0.0})], label="l", unit="ms", colors={"p": 1})
