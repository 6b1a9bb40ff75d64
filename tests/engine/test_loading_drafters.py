"""Which drafters an engine is loaded with, and that a real model's answers are the same with each."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.engine import EngineSettings
from paceline.errors import ConfigError, InvalidParameterError
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


def accepted(llm: LLM, **names: str) -> int:
    """Drafts that stood of one answer, which is the same each time."""
    return llm.generate([5, 6, 7, 8], PARAMS, **names)[0].speculation.num_accepted


def test_a_tenants_answers_are_drafted_from_for_that_tenant_alone(models: tuple[str, str]) -> None:
    """B36: through the API that callers use; none is a tenant of its own, not all of them."""
    with LLM(models[0], drafter="suffix", kv_memory="64MiB") as llm:
        fresh = accepted(llm, tenant="a", route="chat")
        again = accepted(llm, tenant="a", route="chat")
        assert again > fresh
        others = [{"tenant": "b", "route": "chat"}, {"tenant": "a", "route": "code"}, {"route": "chat"}, {}]
        assert [accepted(llm, **names) for names in others] == [fresh] * 4
        llm.submit([5, 6, 7, 8], PARAMS, tenant="b", route="chat")
        (submitted,) = [chunk.result for chunk in llm.run() if chunk.result is not None]
        *_, last = llm.stream([5, 6, 7, 8], PARAMS, tenant="b", route="code")
        assert last.result is not None
        assert submitted.speculation.num_accepted == again
        assert last.result.speculation.num_accepted == fresh


def test_tenants_may_share_where_that_is_configured(models: tuple[str, str]) -> None:
    with LLM(models[0], drafter="suffix", kv_memory="64MiB", answer_sharing="route") as llm:
        fresh = accepted(llm, tenant="a", route="chat")
        assert accepted(llm, tenant="b", route="chat") > fresh


def test_drafts_that_nobody_could_make_are_refused(models: tuple[str, str]) -> None:
    """B42: who asks for drafts where no drafter is the engine's own is not just decoded plainly."""
    with LLM(models[0], kv_memory="64MiB") as llm:
        with pytest.raises(
            InvalidParameterError, match=r"speculation without a drafter; expected .*'suffix'"
        ):
            llm.generate([5], PARAMS, speculation=SpeculationParams(draft_length=3))
        assert not llm.loaded.engine.has_work
        for harmless in (SpeculationParams(draft_length=0), SpeculationParams(enabled=False), None):
            (result,) = llm.generate([5], PARAMS, speculation=harmless)
            assert result.speculation.num_drafted == 0


@pytest.mark.parametrize("name", ["request_id", "route", "tenant"])
def test_names_are_text(models: tuple[str, str], name: str) -> None:
    with LLM(models[0], kv_memory="64MiB") as llm:
        with pytest.raises(InvalidParameterError, match=f"{name} of type list; expected text, or none"):
            llm.submit([5], PARAMS, **{name: ["a"]})
        assert not llm.loaded.engine.has_work


def test_mixed_needs_a_draft_model() -> None:
    with pytest.raises(ConfigError, match="drafter 'mixed' without a draft model"):
        EngineSettings(target="t", drafter="mixed")


@pytest.mark.parametrize("size", [-1, 1, 1023])
def test_a_store_that_keeps_no_answer_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match="answer_store_tokens"):
        EngineSettings(target="t", answer_store_tokens=size)
