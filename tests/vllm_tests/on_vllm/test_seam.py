"""The installed vLLM is the one that this was written against; where it is not, it is said by name."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds

from paceline.vllm.scheduler import RouteScheduler, RouteScheduling, SyncRouteScheduler
from paceline.vllm.seam import METHODS, TESTED, Fields, Method, Said, seam_faults


def test_this_release_is_as_it_was() -> None:
    import vllm

    assert seam_faults() == []
    assert vllm.__version__ in TESTED


def test_all_that_is_overridden_is_compared() -> None:
    compared = {(method.owner.rpartition(":")[2], method.name) for method in METHODS}
    ours = {
        name for cls in (RouteScheduling, RouteScheduler, SyncRouteScheduler) for name in vars(cls)
        if callable(getattr(Scheduler, name, None)) and not name.startswith("__")
    }  # fmt: skip
    assert ours - {name for owner, name in compared if owner == "Scheduler"} == set()
    assert "_update_after_schedule" in ours


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
