"""Routes on the real vLLM: one batch, several routes, while they change; look-ups, and a draft model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.config.routes import RouteSettings
from tests.vllm_tests.on_vllm.served import COUNTING, NGRAM, Answer, Asked, Served, draft_model

ON4 = RouteSettings(speculation="on", draft_length=4)
ON2 = RouteSettings(speculation="on", draft_length=2)
OFF = RouteSettings(speculation="off")
THREE = {"four": ON4, "two": ON2, "off": OFF}
PROMPTS = {name: f"Count for {name}: {COUNTING}" for name in THREE}


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, ...]]:
    """What vLLM answers by itself, without speculation and without us."""
    served = Served(model, tmp_path_factory.mktemp("plain"), None)
    answers = served.run(*(Asked(prompt) for prompt in PROMPTS.values()))
    served.close()
    return dict(zip(PROMPTS, (one.token_ids for one in answers), strict=True))


@pytest.fixture(scope="module", params=["ngram", "draft_model"])
def served(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """vLLM with routes, by each of the two methods; small chunks of prompts, and prefix caching."""
    flags: dict[str, Any] = {"max_num_batched_tokens": 64, "enable_prefix_caching": True}
    method = NGRAM if request.param == "ngram" else draft_model(model)
    found = Served(
        model, tmp_path_factory.mktemp(request.param), THREE, speculative_config=method,
        worker_cls="paceline.vllm.RouteWorker", **flags,
    )  # fmt: skip
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _as_it_was(served: Served) -> None:
    """Begin each test with the same routes."""
    version = served.put(THREE)
    served.look(lambda one: one.routes_version == version)


def drafts_of(served: Served, route: str) -> tuple[int, int, list[int], list[int]]:
    """Return what the engine core counted of a route once all its requests are over."""
    found = served.look(lambda one: one.num_running == one.num_waiting == 0)
    drafts = found.counts.routes[route].drafts.get("suffix") or found.counts.routes[route].drafts.get("model")
    if drafts is None:
        return 0, 0, [0] * 4, [0] * 4
    return drafts.num_drafted, drafts.num_accepted, drafts.drafted_at[:4], drafts.accepted_at[:4]


def counted(answers: list[Answer]) -> tuple[int, int, list[int], list[int]]:
    """Return the same by vLLM's own counts, added up here."""
    places = [one.by_position() for one in answers]
    drafted, accepted = (
        [sum(column) for column in zip(*(one[side] for one in places), strict=True)] for side in (0, 1)
    )
    return (
        sum(sum(one.drafted) for one in answers),
        sum(sum(one.accepted) for one in answers),
        drafted,
        accepted,
    )


def test_one_batch_three_routes(served: Served, plain: dict[str, tuple[int, ...]]) -> None:
    before = {name: drafts_of(served, name) for name in THREE}
    answers = dict(zip(THREE, served.run(*(Asked(PROMPTS[name], name) for name in THREE)), strict=True))
    assert {name: one.token_ids for name, one in answers.items()} == plain
    assert answers["off"].drafted == ()
    assert max(answers["four"].drafted) == 4
    assert max(answers["two"].drafted) == 2
    for name in ("four", "two"):
        after = drafts_of(served, name)
        new = [now - then for now, then in zip(after[:2], before[name][:2], strict=True)]
        theirs = counted([answers[name]])
        # vLLM counts drafts accepted behind an answer's end too; there is at most one such step.
        assert new[0] == theirs[0] > 0
        assert theirs[1] - 4 <= new[1] <= theirs[1]
        assert [now - then for now, then in zip(after[2], before[name][2], strict=True)] == theirs[2]
        assert after[0] == sum(after[2])
        assert after[1] == sum(after[3])
    assert drafts_of(served, "off") == before["off"]


def test_routes_that_change_while_streams_run_are_obeyed_and_lose_nobody(
    served: Served, plain: dict[str, tuple[int, ...]]
) -> None:
    ids: list[str] = []
    flips: list[int] = []

    def flip(number: int, lengths: dict[str, int]) -> None:
        has_begun = len(ids) == 3 and lengths.get(ids[2], 0) >= 4
        if (has_begun and not flips) or (len(flips) == 1 and number == flips[0] + 6):
            # Off for "four" and on for "off", then as it was.
            flips.append(number)
            version = served.put({"four": OFF, "two": ON2, "off": ON4} if len(flips) == 1 else THREE)
            served.look(lambda one: one.routes_version == version)

    names = list(THREE)
    ids += [served.ask(Asked(PROMPTS[name], name, 96)) for name in names]
    found = served.drain(flip)
    answers = {name: found[number] for name, number in zip(names, ids, strict=True)}
    assert len(flips) == 2
    assert {name: one.token_ids[:32] for name, one in answers.items()} == plain
    assert {len(one.token_ids) for one in answers.values()} == {96}
    assert answers["off"].drafted, "a route that was switched on while its request ran drafts"
    four = answers["four"]
    num_by_drafts = len(four.drafted) + sum(four.accepted)
    assert len(four.token_ids) - num_by_drafts >= 3, "one that was switched off went on without drafts"
    lines = served.bridge.decisions_path(0).read_text().splitlines()
    last = [json.loads(line) for line in lines][-4:]
    assert {(one["route"], one["kind"], one["by"]) for one in last} == {
        ("four", "setting", "ann"), ("off", "setting", "ann"),
    }  # fmt: skip
    assert served.look().errors == ()


def test_broken_routes_change_nothing_and_are_said(served: Served) -> None:
    version = served.version
    path = served.bridge.routes_path
    sound = path.read_text()
    path.write_text("{")
    found = served.look(lambda one: one.routes_error is not None)
    assert found.routes_version == version
    answers = served.run(Asked(PROMPTS["off"], "off"))
    assert answers[0].drafted == ()
    path.write_text(sound)
    served.look(lambda one: one.routes_error is None)


def test_what_requests_ask_for_themselves(served: Served, plain: dict[str, tuple[int, ...]]) -> None:
    prompt = PROMPTS["four"]
    less, none, unknown = served.run(
        Asked(prompt, "four", arguments={"paceline_max_draft_length": 1}),
        Asked(prompt, "four", arguments={"paceline_speculation_enabled": 0}),
        Asked(prompt, "nobody"),
    )
    assert {less.token_ids, none.token_ids, unknown.token_ids} == {plain["four"]}
    assert set(less.drafted) == {1}
    assert none.drafted == ()
    assert max(unknown.drafted) == 4  # on the default route
    assert served.look(lambda one: "nobody" in one.unknown_routes).unknown_routes["nobody"] >= 1


def test_a_storm_of_aborts_loses_nobody_else(served: Served, plain: dict[str, tuple[int, ...]]) -> None:
    before = served.look(lambda one: one.num_running == one.num_waiting == 0)
    kept = served.ask(Asked(PROMPTS["four"], "four"))
    doomed = [
        served.ask(Asked(f"{number}. {COUNTING}", name, 64))
        for number in range(6)
        for name in ("four", "off")
    ]

    def abort(number: int, lengths: dict[str, int]) -> None:
        if number % 2 == 0 and doomed:
            served.engine.abort_request([doomed.pop(), doomed.pop(0)])

    answers = served.drain(abort)
    assert answers[kept].token_ids == plain["four"]
    assert set(answers) == {kept}
    after = served.look(lambda one: one.num_running == one.num_waiting == 0)
    ended = {
        name: after.counts.routes[name].num_answers - before.counts.routes[name].num_answers
        for name in ("four", "off")
    }
    assert ended["four"] == {"length": 1, "abort": 6}
    assert ended["off"] == {"abort": 6}
    for load in after.loads.values():
        assert min(load.num_running, load.num_waiting, load.num_preemptions) >= 0
    for counts in after.counts.routes.values():
        assert all(0 <= one.num_accepted <= one.num_drafted for one in counts.drafts.values())
    assert after.errors == ()


def test_structured_output_on_a_route_that_speculates(served: Served) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    form = StructuredOutputsParams(regex=r"(one|two|three)( (one|two|three)){7}")
    on, off = served.run(
        Asked(f"Count: {COUNTING}", "four", 48, structured=form),
        Asked(f"Count: {COUNTING}", "off", 48, structured=form),
    )
    assert on.text == off.text
    assert len(on.text.split()) == 8
    assert (on.finish_reason, off.finish_reason) == ("stop", "stop")
    assert off.drafted == ()
    assert on.drafted
