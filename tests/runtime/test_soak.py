"""Many clients of many kinds, a fifth of whom leave: every answer is right, and nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from paceline.drafters.scripted import ScriptedDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.engine.scheduler import SchedulerLimits
from paceline.errors import BusyError
from paceline.models.scripted import ScriptedModel
from paceline.parameters import StructuredOutput
from paceline.records import GenerationResult, Request, SamplingParams
from paceline.runtime import Runtime
from tests.engine.scripted import (
    OFF,
    draft_model,
    hashed_logits,
    make_engine,
    outcome,
    request,
    run,
    speculate,
)
from tests.engine.test_faults import Recorder
from tests.runtime.gated import LOGITS, V, go

NUM_CLIENTS, NUM_REQUESTS = 12, 9
FORMS = [StructuredOutput(regex="[a-h]{2,9}z?"), StructuredOutput(choice=("abba", "abc", "xyz"))]


def some_request(name: str, rng: np.random.Generator) -> Request:
    params: dict[str, Any] = {"max_tokens": int(rng.integers(1, 30))}
    if rng.random() < 0.5:
        params |= {"temperature": 1.0, "top_p": 0.9, "n": int(rng.integers(1, 4))}
    if rng.random() < 0.3:
        params |= {"structured_output": FORMS[int(rng.integers(2))]}
    if rng.random() < 0.3:
        params |= {"logprobs": 1, "prompt_logprobs": 1}
    if rng.random() < 0.3:
        params |= {"stop": ("ab", "q"), "frequency_penalty": 0.4}
    drafter = str(rng.choice(["model", "suffix", "failing", "off"]))
    speculation = OFF if drafter == "off" else speculate(int(rng.integers(1, 7)), drafter)
    prompt = rng.integers(0, V, int(rng.integers(1, 40))).tolist()
    return request(
        prompt, SamplingParams(**params), speculation, seed=int(rng.integers(2**40)), request_id=name
    )


def alone(asked: Request, result: GenerationResult) -> GenerationResult:
    """The same choice as the only answer of a plain engine."""
    params = asked.sampling.model_copy(update={"n": 1})
    return run(make_engine(LOGITS, V), request(asked.prompt_token_ids, params, OFF, seed=result.seed))[0]


def test_every_answer_is_right_and_nothing_is_left_behind() -> None:
    chance = np.random.default_rng(3)

    def fails_at_times(asked: Any) -> list[int]:
        if chance.random() < 0.1:
            raise RuntimeError("a bad day")
        return chance.integers(0, V, asked.draft_length).tolist()  # type: ignore[no-any-return]

    draft = draft_model(ScriptedModel(hashed_logits(V, 2.9), V), num_blocks=20, block_size=4)
    drafters = {"model": draft, "suffix": SuffixDrafter(1), "failing": ScriptedDrafter(fails_at_times)}
    limits = SchedulerLimits(max_num_seqs=6, max_num_batched_tokens=40, prefill_chunk=9)
    one = make_engine(LOGITS, V, drafters, num_blocks=40, block_size=4, limits=limits)
    recorder = Recorder()
    one.observers.add(recorder)
    finished: list[tuple[Request, tuple[GenerationResult, ...]]] = []
    left: list[str] = []

    async def client(number: int, runtime: Runtime) -> None:
        rng = np.random.default_rng(number)
        for count in range(NUM_REQUESTS):
            asked = some_request(f"{number}-{count}", rng)
            while True:
                try:
                    stream = await runtime.submit(asked)
                    break
                except BusyError:
                    await asyncio.sleep(0.001)
            if rng.random() < 0.2:
                for _ in range(int(rng.integers(0, 4))):
                    await anext(stream, None)
                await stream.aclose()
                left.append(asked.id)
            else:
                finished.append((asked, await stream.results()))

    async def main() -> None:
        async with Runtime(one, max_queued=10) as runtime:
            await asyncio.gather(*(client(number, runtime) for number in range(NUM_CLIENTS)))
            await runtime.drain()
            assert await runtime.call(lambda e: (e.pool.num_used, draft.pool.num_used)) == (0, 0)
            assert (runtime.num_open, runtime.num_open_sequences) == (0, 0)

    go(main)
    assert len(finished) + len(left) == NUM_CLIENTS * NUM_REQUESTS
    assert left
    assert one.num_preemptions > 0
    for asked, results in finished:
        assert [r.index for r in results] == list(range(asked.sampling.n))
        for result in results:
            expected = alone(asked, result)
            assert outcome(result) == outcome(expected)
            assert result.logprobs == expected.logprobs
            if result.index == 0:
                assert result.prompt_logprobs == expected.prompt_logprobs
    # One report for each answer that was begun, also of those who left.
    ids = [(r.id, r.index) for r in recorder.results]
    assert len(ids) == len(set(ids))
    assert {(a.id, r.index) for a, results in finished for r in results} <= set(ids)
    sent: dict[tuple[str, int], int] = {}
    for step in (s for record in recorder.steps for s in record.sequences):
        sent[step.request_id, step.index] = sent.get((step.request_id, step.index), 0) + step.num_sent_tokens
    for _, results in finished:
        for result in results:
            assert sent[result.id, result.index] == result.usage.completion_tokens
    assert not one._scheduler.has_work
    assert {r.speculation.fallback is None for _, results in finished for r in results} == {True, False}
