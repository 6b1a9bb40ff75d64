"""Gates on figures of a report."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.measure.report.scenes import report

from paceline.errors import ConfigError
from paceline.measure.report.require import FIGURES, check_names, parse, verdicts

SPEEDS = {
    "chat": {1: {"model:4": 1.6, "auto": 1.6}, 8: {"model:2": 1.1, "auto": 1.0}},
    "code.py": {1: {"model:4": 0.8, "auto": 1.0}, 8: {"model:2": 0.8, "auto": 1.0}},
}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("chat.speedup >= 1.26", [math.sqrt(1.6)]),
        ("chat.speedup@1==1.6", [1.6]),
        ("chat.speedup@8<=1", [1.0]),
        ("code.py.speedup>=1", [1.0]),
        ("*.identical==1", [1.0, 1.0]),
        ("chat.itl_p50_ms@1<70", [1000 * 0.1 / 1.6]),
        ("chat.acceptance_rate>0.4", [0.5]),
        ("chat.agreement>0.7", [23 / 31]),
        ("chat.extra_flops_per_token>0", [(20 * 2e9 + 90 * 2e8) / 32]),
    ],
)
def test_figures_are_those_of_what_is_recommended(tmp_path: Path, text: str, values: list[float]) -> None:
    found = verdicts(report(tmp_path, SPEEDS), [parse(text)])
    assert [one.value for one in found] == pytest.approx(values)
    assert all(one.is_met for one in found)


def test_a_gate_that_is_not_met_says_so(tmp_path: Path) -> None:
    found = verdicts(report(tmp_path, SPEEDS), [parse("*.speedup>=1.2")])
    assert [(one.route, one.is_met) for one in found] == [("chat", True), ("code.py", False)]


def test_what_was_not_measured_is_not_met(tmp_path: Path) -> None:
    loads = {1: {"forecast model:4": 1.6}, 8: {"forecast model:2": 1.1}}
    (one,) = verdicts(report(tmp_path, {"chat": loads}), [parse("chat.speedup>=0")])
    assert one.value is None
    assert not one.is_met


def test_every_figure_can_be_asked_for(tmp_path: Path) -> None:
    found = verdicts(report(tmp_path, SPEEDS), [parse(f"chat.{figure}>=0") for figure in FIGURES])
    assert all(one.is_met for one in found)


@pytest.mark.parametrize(
    "text", ["chat", "chat.speedup", "chat.speedup=1", "speedup>1", "chat.speedup>fast", ""]
)
def test_what_is_spelt_wrong_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected ROUTE.FIGURE\[@CLIENTS\]"):
        parse(text)


def test_names_are_checked_before_anything_is_measured() -> None:
    with pytest.raises(ConfigError, match="figure 'speeed'"):
        parse("chat.speeed>1")
    with pytest.raises(ConfigError, match="route 'rag'"):
        check_names([parse("rag.speedup>1")], ["chat"], [1])
    with pytest.raises(ConfigError, match="4 clients"):
        check_names([parse("*.speedup@4>1")], ["chat"], [1])
