"""Routes and policy beside a scheduler that is not ours, played here without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.clock import ManualClock
from paceline.config.routes import RouteSettings
from paceline.policy.decision_log import DecisionLog
from paceline.records import FinishReason
from paceline.vllm.driver import RouteDriver
from paceline.vllm.facts import EngineFacts, drafter_of
from paceline.vllm.knowledge import load_knowledge, save_knowledge
from paceline.vllm.routes_file import RouteEntry, RoutesFile
from paceline.vllm.steps import Candidate, Load, Outcome, ScheduledPart, pass_rows, take_apart

MODEL = EngineFacts(method="draft_model", max_draft_length=4, can_skip=True)
NGRAM = EngineFacts(method="ngram", max_draft_length=4, can_skip=True)


def routes(version: int = 1, by: str = "ann", **settings: Mapping[str, Any]) -> RoutesFile:
    entries = {name: RouteEntry(RouteSettings(**values), by) for name, values in settings.items()}
    return RoutesFile(version, next(iter(entries)), entries)


ON, OFF, AUTO = ({"speculation": word} for word in ("on", "off", "auto"))


class Player:
    """vLLM, as far as the driver can tell: a batch of requests that all decode, and how long a step takes.

    Args:
        driver: under test.
        clock: its clock.
        accepts: drafts accepted of so many, for a request.
        target_s: seconds of a pass over so many rows.
        draft_s: seconds of one of the drafter's passes.
    """

    def __init__(
        self,
        driver: RouteDriver,
        clock: ManualClock,
        accepts: Callable[[str, int], int] = lambda name, n: n,
        target_s: Callable[[int], float] = lambda rows: 0.02,
        draft_s: float = 0.002,
    ) -> None:
        self.driver, self.clock = driver, clock
        self._accepts, self._target_s, self._draft_s = accepts, target_s, draft_s
        self.tokens: dict[str, int] = {}
        self.drafts: dict[str, int] = {}
        self.depths: list[int] = []
        self.skips: list[bool] = []
        self.seconds: list[float] = []

    def add(self, name: str, route: str | None = None, **arguments: Any) -> None:
        args = arguments if route is None else {"paceline_route": route, **arguments}
        self.driver.add(name, args, 10)
        self.tokens[name] = 0

    def step(self) -> dict[str, int]:
        """Run a step and return the drafts that each request had verified in it."""
        verified = {name: self.drafts.get(name, 0) for name in self.tokens}
        parts = [
            ScheduledPart(name, 10 + tokens if tokens else 0, 1 if tokens else 10, verified[name], tokens > 0)
            for name, tokens in self.tokens.items()
        ]
        candidates = [Candidate(name, 11 + n, n + 1, 100) for name, n in self.tokens.items()]
        load = Load(len(parts), 0, 100, 10, 0, is_short_of_blocks=False)
        step, drafts = self.driver.begin(parts, candidates, load, self.clock())
        self.depths.append(drafts.depth)
        self.skips.append(drafts.skips)
        before = self.clock()
        self.clock.advance(self._target_s(sum(part.num_tokens + part.num_drafted for part in parts)))
        self.clock.advance(self._draft_s * max(drafts.depth, not drafts.skips))
        outcomes = {}
        for name in self.tokens:
            accepted = self._accepts(name, verified[name])
            outcomes[name] = Outcome(verified[name], accepted, accepted + 1, is_finished=False)
            self.tokens[name] += accepted + 1
        self.seconds.append(self.clock() - before)
        self.driver.end(step, outcomes, self.clock())
        self.drafts = {name: min(self.driver.draft_length(name), drafts.depth) for name in self.tokens}
        return verified

    def finish(self, name: str, reason: FinishReason = FinishReason.LENGTH) -> None:
        self.driver.finished(name, reason, is_in_step=False)
        del self.tokens[name]


def player(facts: EngineFacts, table: RoutesFile, **more: Any) -> Player:
    clock = ManualClock(100.0)
    return Player(RouteDriver(table, facts, log=DecisionLog(), clock=clock), clock, **more)


@pytest.mark.parametrize("facts", [MODEL, NGRAM])
def test_each_request_has_its_own_routes_drafts(facts: EngineFacts) -> None:
    routed = routes(
        four={"speculation": "on", "draft_length": 4}, two={"speculation": "on", "draft_length": 2}, off=OFF
    )
    play = player(facts, routed, accepts=lambda name, n: n // 2)
    for name in ("four", "two", "off"):
        play.add(name, name)
    steps = [play.step() for _ in range(10)]
    assert steps[0] == {"four": 0, "two": 0, "off": 0}
    assert all(one == {"four": 4, "two": 2, "off": 0} for one in steps[1:])
    assert set(play.depths) == {4}
    counts = play.driver.counts.routes
    drafter = facts.drafter
    assert drafter is not None
    four = counts["four"].drafts[drafter]
    assert (four.num_drafted, four.num_accepted, four.drafted_at[:5], four.accepted_at[:5]) == (
        36, 18, [9, 9, 9, 9, 0], [9, 9, 0, 0, 0],
    )  # fmt: skip
    assert counts["two"].drafts[drafter].drafted_at[:3] == [9, 9, 0]
    assert counts["off"].drafts == {}
    assert [counts[name].num_output_tokens for name in ("four", "two", "off")] == [28, 19, 10]


def test_the_next_step_goes_by_new_routes_and_says_who_changed_them() -> None:
    play = player(NGRAM, routes(chat=ON, batch=OFF))
    play.add("a", "chat")
    play.add("b", "batch")
    for _ in range(3):
        play.step()
    play.driver.put_in_force(routes(2, "bob", chat=OFF, batch=ON))
    play.step()  # verifies what was drafted before
    assert [play.step() for _ in range(2)] == [{"a": 0, "b": 4}] * 2
    assert play.driver.routes_version == 2
    assert [(one.route, one.by) for one in play.driver.policy.log.recent] == [
        ("chat", "bob"),
        ("batch", "bob"),
    ]


def test_routes_come_and_go_while_requests_run() -> None:
    play = player(NGRAM, routes(chat=ON, batch=OFF))
    play.add("a", "chat")
    play.step()
    play.driver.put_in_force(routes(2, batch=OFF, code={"speculation": "on", "draft_length": 2}))
    play.add("c", "code")
    play.step()
    assert [play.step() for _ in range(2)] == [{"a": 0, "c": 2}] * 2
    assert play.driver.loads()["chat"].num_running == 1
    play.driver.put_in_force(routes(3, batch=OFF, chat=ON))
    play.step()
    assert play.step() == {"a": 4, "c": 0}


@pytest.mark.parametrize(
    ("arguments", "drafts"),
    [
        ({}, 4),
        ({"paceline_speculation_enabled": False}, 0),
        ({"paceline_speculation_enabled": 0}, 0),
        ({"paceline_speculation_enabled": "false"}, 0),
        ({"paceline_speculation_enabled": "True"}, 4),
        ({"paceline_max_draft_length": 1}, 1),
    ],
)
def test_what_a_request_asks_of_its_route(arguments: dict[str, Any], drafts: int) -> None:
    play = player(NGRAM, routes(chat=ON))
    play.add("a", "chat", **arguments)
    play.step()
    assert play.step() == {"a": drafts}
    assert not play.driver.faults


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"paceline_speculation_enabled": "perhaps"}, "'perhaps'"),
        ({"paceline_speculation_enabled": True}, "speculation is off for this route"),
        ({"paceline_max_draft_length": 60}, "at most 8"),
        ({"paceline_max_draft_length": "many"}, "max_draft_length"),
    ],
)
def test_what_a_request_may_not_ask_is_said_and_its_route_decides(
    arguments: dict[str, Any], words: str
) -> None:
    play = player(NGRAM, routes(batch=OFF))
    play.add("a", None, **arguments)
    play.step()
    assert play.step() == {"a": 0}
    assert words in play.driver.faults[0]


def test_an_unknown_route_is_served_as_the_default_and_counted() -> None:
    play = player(NGRAM, routes(chat=ON))
    for number in range(50):
        play.add(f"r{number}", "chta" if number < 3 else f"x{number}")
    assert play.driver.unknown_routes["chta"] == 3
    assert len(play.driver.unknown_routes) == 33
    assert play.driver.unknown_routes["..."] == 50 - 3 - 31
    assert play.driver.loads()["chat"].num_requests == 50


def test_abort_and_preemption_leave_no_count_behind() -> None:
    play = player(MODEL, routes(chat=ON))
    for name in "abc":
        play.add(name)
    play.step()
    play.step()
    play.driver.preempted("a")
    assert play.driver.draft_length("a") == 0
    assert play.driver.loads()["chat"] == (load := play.driver.loads()["chat"])
    assert (load.num_running, load.num_waiting, load.num_preemptions) == (2, 1, 1)
    for name in "abc":
        play.finish(name, FinishReason.ABORT)
    play.driver.finished("a", FinishReason.ABORT, is_in_step=False)  # again, as vLLM may
    load = play.driver.loads()["chat"]
    assert (load.num_running, load.num_waiting, load.num_requests) == (0, 0, 3)
    assert play.driver.counts.routes["chat"].num_answers == {"abort": 3}
    assert play.step() == {}


def test_a_request_that_is_gone_before_its_tokens_came_counts_none() -> None:
    play = player(NGRAM, routes(chat=ON))
    play.add("a")
    play.step()
    part = ScheduledPart("a", 11, 1, 4, has_output=True)
    step, _ = play.driver.begin([part], [], Load(1, 0, 9, 1, 0, is_short_of_blocks=False), play.clock())
    play.finish("a", FinishReason.ABORT)
    play.driver.end(step, {}, play.clock())
    chat = play.driver.counts.routes["chat"]
    assert (chat.drafts, chat.num_output_tokens, chat.num_answers) == ({}, 1, {"abort": 1})


def test_answers_that_end_in_a_step_are_counted_after_it() -> None:
    play = player(NGRAM, routes(chat=ON))
    play.add("a")
    play.step()
    part = ScheduledPart("a", 11, 1, 4, has_output=True)
    step, _ = play.driver.begin([part], [], Load(1, 0, 9, 1, 0, is_short_of_blocks=False), play.clock())
    play.driver.finished("a", FinishReason.STOP, is_in_step=True)
    play.driver.end(step, {"a": Outcome(4, 2, 3, is_finished=True)}, play.clock())
    chat = play.driver.counts.routes["chat"]
    assert (chat.num_output_tokens, chat.num_prompt_tokens, chat.num_answers) == (4, 10, {"stop": 1})


def test_the_drafters_pass_is_left_out_where_all_routes_are_off_and_who_lived_through_it_drafts_no_more() -> (
    None
):
    play = player(MODEL, routes(chat=OFF))
    play.add("old")
    for _ in range(12):
        play.step()
    # Never beside a prompt, nor before it is known what steps take.
    assert play.skips == [False] * 9 + [True] * 3
    play.driver.put_in_force(routes(2, chat=ON))
    play.add("new")
    play.step()
    assert [play.step() for _ in range(3)] == [{"old": 0, "new": 4}] * 3
    assert not any(play.skips[12:])
    play.driver.preempted("old")  # computes everything anew, in the drafter as well
    play.step()
    assert play.step() == {"old": 4, "new": 4}


def test_nothing_is_looked_up_where_nobody_drafts_and_all_is_again_at_once_when_a_route_is_on() -> None:
    play = player(NGRAM, routes(chat=OFF, batch=OFF))
    play.add("a", "chat")
    play.add("b", "batch")
    assert [play.step() for _ in range(12)] == [{"a": 0, "b": 0}] * 12
    assert play.skips == [True] * 12  # prompts included: there is nothing of theirs to be kept up
    play.driver.put_in_force(routes(2, chat=ON, batch=OFF))
    play.step()
    assert [play.step() for _ in range(3)] == [{"a": 4, "b": 0}] * 3
    assert not any(play.skips[12:])
    play.driver.put_in_force(routes(3, chat=OFF, batch=OFF))
    # Its drafts are made by now, and verified; nothing comes after them.
    assert [play.step() for _ in range(3)] == [{"a": 4, "b": 0}, *[{"a": 0, "b": 0}] * 2]
    assert play.skips[-3:] == [True] * 3
    chat = play.driver.counts.routes["chat"].drafts["suffix"]
    assert (chat.num_drafted, chat.num_accepted) == (16, 16)


def test_where_a_request_alone_may_not_draft_nothing_is_looked_up_either() -> None:
    play = player(NGRAM, routes(chat=ON))
    play.add("a", "chat", paceline_speculation_enabled=False)
    assert [play.step() for _ in range(3)] == [{"a": 0}] * 3
    assert play.skips == [True] * 3
    play.add("b", "chat")
    play.step()
    assert play.step() == {"a": 0, "b": 4}
    assert not any(play.skips[3:])


def test_while_every_route_is_off_the_policy_is_not_asked_and_hears_now_and_then_what_steps_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = player(NGRAM, routes(chat=OFF), target_s=lambda rows: 0.03)
    policy, heard = play.driver.policy, []
    hear = policy.on_step_of
    monkeypatch.setattr(policy, "plan", lambda view: pytest.fail("it was asked"))
    monkeypatch.setattr(policy, "on_step_of", lambda record, probes: heard.append(hear(record, probes)))
    play.add("a")
    for _ in range(1 + 8 + 64):
        play.step()
    # A prompt, and the steps by which a machine is known, and one of eight from then on.
    assert len(heard) == 1 + 8 + 8
    assert policy.costs.plain_s(1, 40) == pytest.approx(0.03, rel=0.05)
    counts = play.driver.counts
    assert (counts.num_steps, counts.routes["chat"].num_output_tokens) == (73, 73)
    assert counts.routes["chat"].num_verify_steps == 72


@pytest.mark.parametrize("other", [ON, AUTO])
def test_one_route_that_is_not_off_has_the_policy_asked(other: Mapping[str, Any]) -> None:
    play = player(NGRAM, routes(chat=OFF, batch=other))
    play.add("a", "chat")
    for _ in range(20):
        play.step()
    assert play.driver.policy.step == 20
    play.driver.put_in_force(routes(2, chat=OFF, batch=OFF))
    play.step()
    assert play.driver.policy.step == 20


def test_the_pass_is_run_where_somebody_may_draft_again() -> None:
    play = player(MODEL, routes(chat=AUTO, batch=OFF))
    play.add("a", "chat")
    play.add("b", "batch")
    for _ in range(60):
        play.step()
    assert not any(play.skips)
    assert sum(play.depths) > 60


def test_ranks_that_draft_together_always_draft_as_many() -> None:
    facts = EngineFacts(method="eagle3", max_draft_length=4, can_vary_depth=False)
    play = player(facts, routes(chat=OFF))
    play.add("a")
    assert [play.step() for _ in range(4)] == [{"a": 0}] * 4
    assert set(play.depths) == {4}


def test_auto_drafts_where_that_pays_and_stops_where_it_does_not() -> None:
    play = player(
        MODEL, routes(good={**AUTO, "drafters": "model"}, bad={**AUTO, "drafters": "model"}),
        accepts=lambda name, n: n if name == "good" else 0, target_s=lambda rows: 0.02 + 0.002 * rows,
    )  # fmt: skip
    for name in ("good", "bad"):
        play.add(name, name)
    steps = [play.step() for _ in range(400)]
    assert not any(any(one.values()) for one in steps[:8])  # before anything is known of the machine
    late = steps[200:]
    assert sum(one["good"] for one in late) > 3 * len(late)
    assert sum(one["bad"] for one in late) < 0.2 * len(late)
    reports = play.driver.policy.reports()
    assert reports["good"].state.value == "speculating"
    assert reports["bad"].reason is not None
    assert reports["bad"].reason.value == "acceptance"


def test_step_costs_are_found_from_whole_steps() -> None:
    play = player(
        MODEL, routes(chat=AUTO), target_s=lambda rows: 0.02 + 0.0005 * rows, draft_s=0.003,
        accepts=lambda name, n: n // 2,
    )  # fmt: skip
    play.add("a")
    for _ in range(600):
        play.step()
    costs = play.driver.policy.costs
    assert costs.median_error is not None
    assert costs.median_error < 0.05
    assert costs.target.seconds(1, 1, 0) == pytest.approx(0.0205, rel=0.15)
    assert play.driver.counts.step_s == pytest.approx(sum(play.seconds), rel=0.01)


def test_what_was_learned_is_there_after_a_restart(tmp_path: Path) -> None:
    play = player(MODEL, routes(chat={**AUTO, "drafters": "model"}), accepts=lambda name, n: n)
    play.add("a", "chat")
    for _ in range(100):
        play.step()
    path, parts = tmp_path / "policy-0.json", {"model": "m"}
    save_knowledge(path, play.driver.policy, parts)
    known = load_knowledge(path, parts)
    assert known is not None
    assert known.costs is not None
    clock = ManualClock()
    driver = RouteDriver(routes(chat={**AUTO, "drafters": "model"}), MODEL, costs=known.costs, clock=clock)
    assert driver.policy.restore(known.history) == ("chat",)
    again = Player(driver, clock)
    again.add("a", "chat")
    again.step()
    assert sum(again.step().values()) > 0  # at once, where a first start looks for eight steps
    assert driver.policy.costs.plain_s(1, 64) == pytest.approx(
        play.driver.policy.costs.plain_s(1, 64), rel=0.1
    )
    assert load_knowledge(path, {"model": "another"}) is None
    path.write_text("{")
    assert load_knowledge(path, parts) is None
    assert load_knowledge(tmp_path / "none", parts) is None


def test_methods_by_what_they_are_here() -> None:
    names = ("ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "eagle3", "mtp", "medusa", None)
    assert [drafter_of(name) for name in names] == ["suffix"] * 3 + ["model"] * 5 + [None]


def test_the_most_that_vllm_was_told_for_a_batch_holds() -> None:
    play = player(NGRAM, routes(chat=ON))
    play.add("a")
    play.step()
    part, candidate = ScheduledPart("a", 11, 1, 0, has_output=True), Candidate("a", 12, 2, 50)
    load = Load(1, 0, 9, 1, 0, is_short_of_blocks=False)
    _, drafts = play.driver.begin([part], [candidate], load, play.clock(), most=1)
    assert (drafts.depth, play.driver.draft_length("a")) == (1, 1)


def test_an_engine_without_a_drafter_drafts_nothing() -> None:
    play = player(EngineFacts(), routes(chat=ON))
    play.add("a")
    assert [play.step() for _ in range(3)] == [{"a": 0}] * 3


def test_a_fault_of_ours_leaves_requests_without_drafts_and_is_said() -> None:
    play = player(NGRAM, routes(chat=ON))
    play.add("a")
    play.step()
    play.driver.note_fault(ZeroDivisionError("by nothing"))
    assert play.driver.draft_length("a") == 0
    assert "ZeroDivisionError: by nothing" in play.driver.faults


def test_a_step_is_taken_apart_into_all_of_its_time() -> None:
    costs = player(MODEL, routes(chat=ON)).driver.policy.costs
    shape: dict[str, Any] = {"num_rows": 4, "num_sequences": 1, "num_context_tokens": 9}
    assert take_apart(0.5, costs, "model", passes=(), **shape) == (0.5, 0.0)
    for seconds in (1e-4, 0.05, 3.0):
        target, draft = take_apart(seconds, costs, "model", passes=pass_rows(4, 1, 3), **shape)
        assert target + draft == pytest.approx(seconds)
        assert min(target, draft) > 0
    assert pass_rows(7, 2, 0) == ()
    assert pass_rows(7, 2, 3) == (7, 2, 2)
