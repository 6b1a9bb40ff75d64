"""Which drafters an engine is loaded with, and that a real model's answers are the same with each."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.engine import EngineSettings
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.records import SamplingParams, SpeculationParams
from tests.tiny_models import TinyModel

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    target = TinyModel(tensor_type="Q8_0").write(tmp_path / "target.gguf")
    return str(target), str(TinyModel(tensor_type="Q8_0", seed=1).write(tmp_path / "draft.gguf"))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_drafter_gives_the_same_answers_and_mixed_uses_both(
    models: tuple[str, str], temperature: float
) -> None:
    params = PARAMS.model_copy(update={"temperature": temperature, "seed": 3})
    with LLM(*models, drafter="mixed", kv_memory="64MiB") as llm:
        assert list(llm.loaded.engine.drafters) == ["suffix", "model", "mixed"]
        prompts = [[5, 6, 7, 8], [9, 10, 11] * 6]
        off = llm.generate(prompts, params, speculation=SpeculationParams(enabled=False))
        accepted = []
        for drafter in ("model", "mixed", "mixed", "suffix"):
            on = llm.generate(prompts, params, speculation=SpeculationParams(drafter=drafter))
            assert [r.token_ids for r in on] == [r.token_ids for r in off]
            assert all(r.speculation.drafter == drafter for r in on)
            accepted.append(sum(r.speculation.num_accepted for r in on))
        # Once `mixed` has learned the answers it follows them, `suffix` sooner.
        assert accepted[2] >= accepted[1] + 6
        assert accepted[3] >= accepted[2]


def test_a_store_of_no_tokens_keeps_nothing(models: tuple[str, str]) -> None:
    with LLM(models[0], drafter="suffix", answer_store_tokens=0, kv_memory="64MiB") as llm:
        first, again = (llm.generate([[5, 6, 7, 8]], PARAMS)[0] for _ in range(2))
    assert first.speculation == again.speculation


def test_mixed_needs_a_draft_model() -> None:
    with pytest.raises(ConfigError, match="drafter 'mixed' without a draft model"):
        EngineSettings(target="t", drafter="mixed")


@pytest.mark.parametrize("size", [-1, 1, 1023])
def test_a_store_that_keeps_no_answer_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="answer_store_tokens"):
        EngineSettings(target="t", answer_store_tokens=size)
