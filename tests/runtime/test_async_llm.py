"""The async API on tiny models of real files: what `LLM` answers, from many tasks at once."""

from __future__ import annotations

import asyncio

import pytest

from paceline.config.engine import EngineSettings
from paceline.errors import EmptyPromptError, ModelNotFoundError
from paceline.llm import LLM
from paceline.parameters import StructuredOutput
from paceline.records import SamplingParams, SpeculationParams
from paceline.runtime import AsyncLLM
from tests.runtime.gated import go
from tests.tiny_models import TinyModel

LIMITS = {"context_length": 256, "kv_memory": "64MiB"}
CHAT = [{"role": "user", "content": "the def"}]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> EngineSettings:
    folder = tmp_path_factory.mktemp("async")
    target = TinyModel("qwen2").write(folder / "target.gguf")
    draft = TinyModel("qwen2", num_layers=1).write(folder / "draft.gguf")
    return EngineSettings(target=str(target), draft=str(draft), **LIMITS)


def test_the_same_answers_as_from_the_sync_api(settings: EngineSettings) -> None:
    params = SamplingParams(max_tokens=16, temperature=0.8, seed=6, ignore_eos=True)
    form = params.model_copy(update={"structured_output": StructuredOutput(choice=("the def", "return"))})
    prompts = ["the def", "return in", "to he th"]
    off = SpeculationParams(enabled=False)

    async def main() -> list[tuple[int, ...]]:
        async with await AsyncLLM.load(settings) as llm:
            answers = await asyncio.gather(
                *(llm.generate(p, params) for p in prompts),
                llm.generate(CHAT, params),
                llm.generate([5, 6, 7], params, speculation=off),
                llm.generate("the", form),
            )
            chunks = [chunk async for chunk in await llm.stream("to", params)]
            assert chunks[-1].result is not None
            routed = await (await llm.submit([5], params, request_id="mine", route="chat")).results()
            assert (routed[0].id, routed[0].route) == ("mine", "chat")
            assert sum(a[0].speculation.num_drafted for a in answers[:3]) > 0
            return [a[0].token_ids for a in answers] + [chunks[-1].result.token_ids]

    found = go(main)
    with LLM.from_settings(settings) as llm:
        expected = [r.token_ids for r in llm.generate(prompts, params, speculation=off)]
        expected += [r.token_ids for r in llm.chat(CHAT, params, speculation=off)]
        expected += [r.token_ids for r in llm.generate([5, 6, 7], params, speculation=off)]
        expected += [r.token_ids for r in llm.generate("the", form, speculation=off)]
        expected += [r.token_ids for r in llm.generate("to", params, speculation=off)]
    assert found == expected


def test_what_one_tenant_was_answered_is_not_drafted_for_another(settings: EngineSettings) -> None:
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    suffix = SpeculationParams(drafter="suffix")

    async def main() -> list[int]:
        async with await AsyncLLM.load(settings) as llm:
            accepted = []
            for tenant in ("a", "b", "a"):
                (result,) = await llm.generate("the def", params, speculation=suffix, tenant=tenant)
                accepted.append(result.speculation.num_accepted)
            stream = await llm.submit([5, 6, 7], params, speculation=suffix, tenant="a", route="other")
            await stream.results()
            return accepted

    first, other, again = go(main)
    assert first == other < again


def test_mistakes_are_refused_at_the_call(settings: EngineSettings) -> None:
    async def main() -> None:
        with pytest.raises(ModelNotFoundError):
            await AsyncLLM.load(EngineSettings(target="no-such-model"))
        async with await AsyncLLM.load(settings) as llm:
            with pytest.raises(EmptyPromptError):
                await llm.stream("")
            assert llm.runtime.num_open == 0

    go(main)
