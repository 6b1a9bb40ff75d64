"""Routes that are off leave out, on the real vLLM, all it does for look-ups; once they are on it is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.config.routes import RouteSettings
from tests.vllm_tests.on_vllm.served import COUNTING, NGRAM, Asked, Served

ON = RouteSettings(speculation="on", draft_length=4)
OFF = RouteSettings(speculation="off")
ALL_OFF = {"chat": OFF, "batch": OFF}
PROMPTS = [f"Count {number}: {COUNTING}" for number in range(2)]


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(
        model, tmp_path_factory.mktemp("off"), ALL_OFF, speculative_config=NGRAM,
        worker_cls="paceline.vllm.RouteWorker", max_num_batched_tokens=64, enable_prefix_caching=False,
        worker_extension_cls="tests.vllm_tests.on_vllm.watching.Watching",
    )  # fmt: skip
    found.llm.collective_rpc("watch")
    yield found
    found.close()


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """vLLM as it comes, without speculation."""
    found = Served(
        model, tmp_path_factory.mktemp("plain"), None, max_num_batched_tokens=64, enable_prefix_caching=False
    )
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _all_off(served: Served) -> None:
    version = served.put(ALL_OFF)
    served.look(lambda one: one.routes_version == version)


def seen(served: Served) -> dict[str, int]:
    found: dict[str, int] = served.llm.collective_rpc("seen")[0]
    return {"look-ups": 0, "questions": 0, "rejection sampling": 0, **found}


def test_the_model_keeps_its_threads_and_look_ups_are_compiled_before_anybody_waits(served: Served) -> None:
    assert served.look().skips_drafting
    before = seen(served)
    assert before["compiled"] == 1
    version = served.put({"chat": ON, "batch": OFF})
    served.look(lambda one: one.routes_version == version)
    answer = served.run(Asked(PROMPTS[0], "chat"))[0]
    after = seen(served)
    assert answer.drafted
    assert after["look-ups"] > before["look-ups"]
    assert (after["compiled"], after["threads"]) == (1, before["threads"])
    assert after["threads"] == 2  # VLLM_CPU_OMP_THREADS_BIND


def test_steps_are_those_without_speculation(served: Served, plain: Served) -> None:
    before = seen(served)
    answers = served.run(Asked(PROMPTS[0], "chat", 40), Asked(PROMPTS[1], "batch", 40))
    after = seen(served)
    assert after["steps"] - before["steps"] >= 40
    assert [after[name] - before[name] for name in ("look-ups", "questions", "rejection sampling")] == [0] * 3
    expected = plain.run(Asked(PROMPTS[0], None, 40), Asked(PROMPTS[1], None, 40))
    assert [one.token_ids for one in answers] == [one.token_ids for one in expected]
    assert {one.drafted for one in answers} == {()}


def test_seeds_log_probabilities_and_penalties_are_vllms_own(served: Served, plain: Served) -> None:
    from vllm import SamplingParams

    def run(one: Served) -> list[Any]:
        asked = [
            SamplingParams(temperature=0.9, seed=5, max_tokens=16, ignore_eos=True),
            SamplingParams(temperature=0, logprobs=3, max_tokens=16, ignore_eos=True),
            SamplingParams(temperature=0, presence_penalty=1.5, max_tokens=16, ignore_eos=True),
        ]
        return [answer.outputs[0] for answer in one.llm.generate([PROMPTS[0]] * 3, asked, use_tqdm=False)]

    ours, theirs = run(served), run(plain)
    assert [list(one.token_ids) for one in ours] == [list(one.token_ids) for one in theirs]
    for mine, other in zip(ours[1].logprobs, theirs[1].logprobs, strict=True):
        assert {token: one.logprob for token, one in mine.items()} == pytest.approx(
            {token: one.logprob for token, one in other.items()}, abs=1e-4
        )


def test_a_route_that_is_switched_while_it_streams_drafts_at_once_and_stops_at_once(
    served: Served, plain: Served
) -> None:
    counts: list[dict[str, int]] = []
    turns = {8: {"chat": ON, "batch": OFF}, 16: ALL_OFF}

    def turn(number: int, lengths: dict[str, int]) -> None:
        # The engine core goes on meanwhile; it answers between two of its steps.
        if number in turns:
            counts.append(seen(served))
            version = served.put(turns[number])
            served.look(lambda one: one.routes_version == version)
        if number in (*turns, 20):
            counts.append(seen(served))

    chat, batch = served.run(Asked(PROMPTS[0], "chat", 200), Asked(PROMPTS[1], "batch", 150), between=turn)
    before_on, on, before_off, off, last = counts

    def grown(called: str, then: dict[str, int], now: dict[str, int]) -> int:
        return now[called] - then[called]

    assert grown("look-ups", before_on, on) <= grown("steps", before_on, on)
    assert grown("look-ups", on, before_off) == grown("steps", on, before_off) > 0
    # Drafts of the step in which it was switched may still be verified, which looks once more.
    assert grown("look-ups", off, last) <= 1 < grown("steps", off, last)
    # It looked into all that was answered before it was on: what it found there stood.
    assert sum(chat.accepted) > 0
    assert batch.drafted == ()
    expected = plain.run(Asked(PROMPTS[0], None, 200), Asked(PROMPTS[1], None, 150))
    assert [chat.token_ids, batch.token_ids] == [one.token_ids for one in expected]
    assert served.look().errors == ()


def test_grammars_and_aborts_while_all_is_off(served: Served) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    form = StructuredOutputsParams(regex=r"(one|two|three)( (one|two|three)){7}")
    doomed = served.ask(Asked(PROMPTS[1], "batch", 64))

    def abort(number: int, lengths: dict[str, int]) -> None:
        if number == 4:
            served.engine.abort_request([doomed])

    before = seen(served)["look-ups"]
    answer = served.run(Asked(PROMPTS[0], "chat", 48, structured=form), between=abort)[0]
    assert len(answer.text.split()) == 8
    assert answer.finish_reason == "stop"
    assert seen(served)["look-ups"] == before
    version = served.put({"chat": ON, "batch": OFF})
    served.look(lambda one: one.routes_version == version)
    again = served.run(Asked(PROMPTS[0], "chat", 48, structured=form))[0]
    assert again.text == answer.text
    assert again.drafted
