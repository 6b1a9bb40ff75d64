"""The installed vLLM is the one that this was written against; where it is not, it is said by name."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu_worker import Worker

from paceline.vllm.facts import FULL_LENGTH
from paceline.vllm.questions import spare_questions
from paceline.vllm.scheduler import RouteScheduler, RouteScheduling, SyncRouteScheduler, engine_facts
from paceline.vllm.seam import METHODS, TESTED, Fields, Method, Said, seam_faults
from paceline.vllm.worker import RouteWorker


def test_this_release_is_as_it_was() -> None:
    import vllm

    assert seam_faults() == []
    assert vllm.__version__ in TESTED


def test_what_stands_in_for_vllms_own_hides_no_change_of_it() -> None:
    spare_questions()
    assert seam_faults() == []


def test_all_that_is_overridden_is_compared() -> None:
    compared = {(method.owner.rpartition(":")[2], method.name) for method in METHODS}
    ours = {
        name for cls in (RouteScheduling, RouteScheduler, SyncRouteScheduler) for name in vars(cls)
        if callable(getattr(Scheduler, name, None)) and not name.startswith("__")
    }  # fmt: skip
    assert ours - {name for owner, name in compared if owner == "Scheduler"} == set()
    assert "_update_after_schedule" in ours
    workers = {
        name for name in vars(RouteWorker) if callable(getattr(Worker, name, None)) and name[:2] != "__"
    }
    assert workers == {name for owner, name in compared if owner == "Worker"}
    assert ("EngineCore", "post_step") in compared


def test_a_method_that_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def schedule(self: Any, throttle: bool, more: int) -> None: ...

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    monkeypatch.delattr(Scheduler, "_free_request")
    faults = seam_faults()
    assert any(
        "Scheduler.schedule('self', 'throttle', 'more') took ('self', 'throttle_prefills')" in one
        for one in faults
    )
    assert any("Scheduler._free_request is gone" in one for one in faults)


def test_code_that_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "update_draft_token_ids", lambda self, draft_token_ids: None)
    assert any(
        "Scheduler.update_draft_token_ids no longer says 'request.spec_token_ids ='" in one
        for one in seam_faults()
    )


def test_a_field_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.vllm import seam

    monkeypatch.setattr(seam, "RECORDS", (Fields("vllm.v1.outputs:DraftTokenIds", ("req_ids", "colours")),))
    monkeypatch.setattr(seam, "METHODS", (Method("vllm.v1.nowhere:Class", "method", ()),))
    monkeypatch.setattr(
        seam, "SAID", (Said("vllm.v1.outputs:DraftTokenIds", "req_ids: list[str]", "a text"),)
    )
    gone, field = seam_faults()
    assert "vllm.v1.nowhere:Class.method is gone" in gone
    assert field == "vllm.v1.outputs:DraftTokenIds has no field colours"
    assert DraftTokenIds(["a"], [[1]]).req_ids == ["a"]


def test_methods_told_their_full_length_are_those_that_vllm_lets_draft_no_other() -> None:
    from vllm.v1 import spec_decode

    folder = Path(next(iter(spec_decode.__path__)))
    told = re.compile(r"assert num_speculative_tokens == self\.(k|num_speculative_tokens)\n")
    found = {path.stem for path in folder.glob("*.py") if told.search(path.read_text(encoding="utf-8"))}
    modules = {"ngram_gpu": "ngram_proposer_gpu", "suffix": "suffix_decoding"}
    assert found == {modules.get(method, method) for method in FULL_LENGTH}


@pytest.mark.parametrize(
    ("method", "more", "can_vary_depth", "can_skip"),
    [
        ("ngram", {}, True, True),
        ("ngram", {"is_hybrid": True}, True, False),
        ("ngram", {"has_inner_state": True}, True, False),
        ("ngram", {"data_parallel_size": 2}, True, False),
        ("ngram", {"worker_cls": "auto"}, True, False),
        ("draft_model", {}, True, True),
        ("draft_model", {"is_hybrid": True}, True, True),
        ("draft_model", {"data_parallel_size": 2}, False, False),
        *((method, {}, False, False) for method in FULL_LENGTH),
    ],
)
def test_what_a_drafter_can_be_told(
    method: str, more: dict[str, Any], can_vary_depth: bool, can_skip: bool
) -> None:
    model = {"is_hybrid": False, "has_inner_state": False}
    values = {"data_parallel_size": 1, "worker_cls": "paceline.vllm.RouteWorker", **model, **more}
    speculation = SimpleNamespace(
        method=method, use_eagle=lambda: False, uses_draft_model=lambda: method == "draft_model"
    )
    config = SimpleNamespace(
        speculative_config=speculation, num_speculative_tokens=4, use_v2_model_runner=False,
        parallel_config=SimpleNamespace(
            data_parallel_index=0, tensor_parallel_size=1, pipeline_parallel_size=1, **values
        ),
        scheduler_config=SimpleNamespace(async_scheduling=False),
        model_config=SimpleNamespace(model="a", dtype="float32", **{name: values[name] for name in model}),
    )  # fmt: skip
    facts = engine_facts(config, skips=True)
    assert (facts.can_vary_depth, facts.can_skip) == (can_vary_depth, can_skip)
    assert not engine_facts(config, skips=False).can_skip
