"""Both of vLLM's ways of scheduling, with no model behind them: its CPU build knows only the synchronous."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from paceline.config.routes import RouteSettings
from paceline.errors import ConfigError
from paceline.vllm.scheduler import RouteScheduler, SyncRouteScheduler
from tests.vllm_tests.on_vllm.stubbed import Stubbed, put

ON4, ON2 = (RouteSettings(speculation="on", draft_length=k) for k in (4, 2))
OFF = RouteSettings(speculation="off")
THREE = {"four": ON4, "two": ON2, "off": OFF}


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def stub(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Iterator[Callable[..., Stubbed]]:
    made: list[Stubbed] = []

    def make(**more: Any) -> Stubbed:
        made.append(Stubbed(model, tmp_path, THREE, is_async=request.param, **more))
        return made[-1]

    yield make
    for one in made:
        one.scheduler.shutdown()


def test_the_class_is_the_one_that_vllm_schedules_by(stub: Callable[..., Stubbed]) -> None:
    made = stub()
    assert type(made.scheduler) is (RouteScheduler if made.is_async else SyncRouteScheduler)
    assert isinstance(made.scheduler, AsyncScheduler if made.is_async else Scheduler)
    assert isinstance(made.scheduler, AsyncScheduler) == made.is_async


def test_each_request_is_scheduled_its_own_routes_drafts(stub: Callable[..., Stubbed]) -> None:
    made = stub()
    for name in THREE:
        made.add(name, name)
    made.drain()
    assert {name: len(made.tokens[name]) for name in THREE} == dict.fromkeys(THREE, 30)
    # The first step of each ends its prompt, with nothing drafted before; the last have less room for drafts.
    found = {name: set(steps[1:-2]) for name, steps in made.verified.items()}
    assert found == {"four": {4}, "two": {2}, "off": {0}}
    assert set(made.verified["off"]) == {0}
    counts = made.scheduler._routes.driver.counts.routes
    assert counts["off"].drafts == {}
    for name, k in (("four", 4), ("two", 2)):
        drafts = counts[name].drafts["model"]
        assert drafts.num_drafted == sum(drafts.drafted_at) > 0
        assert drafts.num_accepted == sum(drafts.accepted_at)
        assert drafts.drafted_at[k - 1] > drafts.drafted_at[k] == 0
        assert drafts.accepted_at[k // 2] == 0
        assert counts[name].num_output_tokens == 30
    assert not made.scheduler._routes.driver.faults


def test_workers_are_told_to_draft_as_many_as_anybody_may_have(stub: Callable[..., Stubbed]) -> None:
    made = stub()
    made.add("a", "two")
    made.drain()
    assert set(made.depths[:-3]) == {2}
    assert max(made.depths) == 2
    made.depths.clear()
    made.add("b", "off")
    made.drain()
    assert set(made.depths) == {0}


def test_a_flag_that_is_flipped_counts_from_the_next_plan_on(
    stub: Callable[..., Stubbed], tmp_path: Path
) -> None:
    made = stub(accepts=lambda name, n: 0)
    made.add("a", "four")
    made.add("b", "off")
    for _ in range(8):
        made.step()
    assert (made.verified["a"][-1], made.verified["b"][-1]) == (4, 0)
    put(tmp_path, 2, {"four": OFF, "two": ON2, "off": ON4})
    made.step()  # verifies what the plan before it had drafted
    for _ in range(3):
        made.step()
        assert (made.verified["a"][-1], made.verified["b"][-1]) == (0, 4)
    made.drain()
    assert (len(made.tokens["a"]), len(made.tokens["b"])) == (30, 30)
    assert made.scheduler._routes.driver.routes_version == 2


def test_few_blocks_preempt_and_lose_nobody(stub: Callable[..., Stubbed]) -> None:
    made = stub(num_blocks=24)
    names = [f"{route}-{number}" for route in THREE for number in range(4)]
    for name in names:
        made.add(name, name.partition("-")[0], max_tokens=60)
    made.drain()
    assert {name: len(made.tokens[name]) for name in names} == dict.fromkeys(names, 60)
    driver = made.scheduler._routes.driver
    assert driver.preemptions.total() > 0
    assert not any(sum(made.verified[name]) for name in names if name.startswith("off"))
    for name, load in driver.loads().items():
        assert (load.num_running, load.num_waiting, load.num_requests) == (0, 0, 4), name
    assert [dict(one.num_answers) for one in driver.counts.routes.values()] == [{"length": 4}] * 3
    assert [one.num_output_tokens for one in driver.counts.routes.values()] == [240] * 3
    assert not driver.faults


def test_a_request_that_resumes_with_one_token_left_has_no_places_for_drafts_nobody_made(
    stub: Callable[..., Stubbed],
) -> None:
    made = stub()
    # All of the second one's prompt but its last token is in the prefix cache: vLLM would pad it with drafts.
    made.add("first", "off", num_prompt=33)
    made.drain()
    made.add("running", "off", max_tokens=50)
    made.step()
    made.step()
    made.scheduler.add_request(_like(made, "first", "again"))
    made.drain()
    assert set(made.verified["again"]) == {0}
    assert len(made.tokens["again"]) == 5


def _like(made: Stubbed, name: str, other: str) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(
        temperature=0, max_tokens=5, ignore_eos=True, extra_args={"paceline_route": "off"}
    )
    params.update_from_generation_config({}, eos_token_id=2)
    prompt = [100 + (hash((name, place)) % 1000) for place in range(33)]
    return Request(other, prompt, params, None, block_hasher=made._hasher)


def test_aborts_at_every_moment(stub: Callable[..., Stubbed]) -> None:
    made = stub(num_blocks=60)
    alive: list[str] = []
    for number in range(60):
        route = list(THREE)[number % 3]
        made.add(f"r{number}", route)
        alive.append(f"r{number}")
        made.step()
        if number % 2:
            made.abort(alive.pop(number * 7 % len(alive)))
    made.drain()
    driver = made.scheduler._routes.driver
    ended = sum((one.num_answers for one in driver.counts.routes.values()), start=type(driver.num_requests)())
    assert ended.total() == 60
    assert ended["abort"] + ended["length"] == 60
    assert driver.requests == {}
    for one in driver.counts.routes.values():
        for drafts in one.drafts.values():
            assert 0 <= drafts.num_accepted <= drafts.num_drafted
    assert not driver.faults


def test_a_policy_that_fails_costs_drafts_and_nothing_else(
    stub: Callable[..., Stubbed], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stub()
    made.add("a", "four")
    for _ in range(3):
        made.step()

    def fail(*_: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(made.scheduler._routes.driver.policy, "plan", fail)
    made.drain()
    assert len(made.tokens["a"]) == 30
    assert made.verified["a"][-1] == 0
    assert any("by nothing" in fault for fault in made.scheduler._routes.look().errors)


def test_without_a_bridge_it_does_not_start(model: Path) -> None:
    with pytest.raises(ConfigError, match="paceline vllm serve"):
        Stubbed(model, None, THREE, is_async=False)
