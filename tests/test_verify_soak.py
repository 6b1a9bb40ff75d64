"""The soak in small: a real model under traffic of every kind; and planted faults, each of which it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verify.soak.answers import RightAnswer
from verify.soak.load import make_plan
from verify.soak.run import ITSELF, Profile, Report, shortcomings, soak
from verify.soak.templates import KINDS, Sizes, Template

from paceline.engine import engine as engine_module
from paceline.engine import step as stages
from paceline.records import FinishReason, SamplingParams
from tests.tiny_models import TinyModel

SIZES = Sizes(context_length=128, max_prompt=24, max_output=48)


def small(path: Path, **more: Any) -> Profile:
    """One template of each kind, and a few requests for each of them."""
    few = {"num_requests": 63, "num_templates": len(KINDS), "sizes": SIZES}
    return replace(ITSELF, target=str(path), draft=str(path), **few | more)


@pytest.mark.models
def test_every_answer_is_right_and_nothing_is_left_behind(preset_path: Callable[[str], Path]) -> None:
    report = soak(small(preset_path(ITSELF.target), kv_memory="4MB"))
    assert report.faults == []
    assert sum(report.num_ended.values()) + report.num_aborted == report.num_requests == 63
    assert report.num_right == report.num_ended
    assert set(report.num_ended) == set(KINDS)
    assert report.num_sampled > 0
    # Too short for a figure of memory: so few requests do not warm up.
    assert [what for what in shortcomings(report) if "memory grew" not in what] == []
    assert len(report.lines()) == len(KINDS) + 8


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = TinyModel("qwen2", tensor_type="Q8_0").write(tmp_path_factory.mktemp("soak") / "tiny.gguf")
    return small(path, kv_memory="40KB")


def test_a_seed_is_a_soak(tiny: Profile) -> None:
    """Each request comes from its own number, so that pieces make a whole."""
    templates = [Template(i, "greedy", (i,), SamplingParams(seed=i)) for i in range(9)]
    plans = [make_plan(number, templates, ["model", "suffix"], seed=1) for number in range(200)]
    assert [make_plan(n, templates, ["model", "suffix"], seed=1) for n in range(100, 200)] == plans[100:]
    assert plans != [make_plan(n, templates, ["model", "suffix"], seed=2) for n in range(200)]
    assert 30 < sum(plan.leaves_after is not None for plan in plans) < 80
    reports = [soak(tiny) for _ in range(2)]
    assert [r.faults for r in reports] == [[], []]
    same = ("num_ended", "num_aborted", "num_preemptions", "num_prefix_hits", "num_drafted", "num_accepted")
    assert [getattr(reports[0], name) for name in same] == [getattr(reports[1], name) for name in same]


def faults(report: Report, what: str) -> list[str]:
    return [fault for fault in report.faults if what in fault]


def test_a_wrong_answer_is_found(tiny: Profile) -> None:
    def spoil(right: dict[int, RightAnswer]) -> None:
        (answer,) = right[0].results
        ids = (*answer.token_ids[:-1], answer.token_ids[-1] + 1)
        right[0] = replace(right[0], results=(replace(answer, token_ids=ids),))

    report = soak(tiny, spoil=spoil)
    assert faults(report, "(greedy)")
    assert len(faults(report, "(greedy)")) == report.num_ended["greedy"] - report.num_right["greedy"]
    assert all("(greedy)" in fault or "not how the right answer begins" in fault for fault in report.faults)


def test_tokens_that_the_target_did_not_choose_are_found(
    tiny: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under both rules: an answer of its own is compared, one of many is looked into."""
    judge = stages.verify

    def believes_drafts(rule: Any, rows: Any, drafts: Any, *more: Any) -> Any:
        verdict = judge(rule, rows, drafts, *more)
        if len(drafts) < 3 or verdict.num_accepted:
            return verdict
        return replace(verdict, token_ids=(drafts[0], *verdict.token_ids[1:]))

    monkeypatch.setattr(stages, "verify", believes_drafts)
    report = soak(tiny)
    assert faults(report, "not the answer of plain decoding")
    assert faults(report, "log-probabilities differ from those of the same text")


def test_blocks_that_are_not_given_back_are_found(tiny: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = engine_module.finish

    def leak(sequence: Any, reason: FinishReason, *more: Any) -> None:
        if reason is FinishReason.ABORT:
            sequence.table.clear = lambda: None
        finish(sequence, reason, *more)

    monkeypatch.setattr(engine_module, "finish", leak)
    report = soak(replace(tiny, kv_memory="1MB"))
    assert faults(report, "left behind: ")
    assert faults(report, "blocks in use")


def test_what_was_not_put_to_the_test_is_said(tiny: Profile) -> None:
    report = soak(replace(tiny, kv_memory="1MB", num_requests=40))
    assert report.faults == []
    assert "no request was preempted: lower kv_memory" in shortcomings(report)
    report.end = replace(report.warm, own=int(1.03 * report.warm.own))
    assert shortcomings(report)[-1].startswith("resident memory grew by 3.00%, more than 2%")
