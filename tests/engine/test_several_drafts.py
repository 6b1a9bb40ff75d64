"""Several draft models: each with weights, KV and figures of its own, and answers that none of them
changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from paceline.config.drafter_names import model_of
from paceline.drafters.interface import HoldsMemory
from paceline.engine.engine import Engine
from paceline.errors import InvalidParameterError
from paceline.llm import LLM
from paceline.models.kv_arena import plan_pages
from paceline.policy.controller import SpeculationPolicy
from paceline.records import GenerationResult, SamplingParams, SpeculationParams
from paceline.step_records import StepRecord
from tests.tiny_models import TinyModel

ROUTES = {
    "small": {"speculation": "on", "drafters": ["model:small"], "draft_length": 3},
    "code": {"speculation": "on", "drafters": ["model:code"], "draft_length": 3},
    "auto": {"speculation": "auto", "drafters": ["suffix", "model:small", "model:code"]},
    "off": {"speculation": "off"},
}
NAMES = ("small", "code", "auto", "code", "small", "auto")
TEXTS = [f"the def return in er on {text}" for text in ("the", "def", "return", "in", "er", "on")]
SAMPLED = SamplingParams(temperature=0.8, seed=5, max_tokens=40, ignore_eos=True)
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A target, a draft model that is its twin, and one that agrees with it now and then."""
    folder = tmp_path_factory.mktemp("several")
    target = TinyModel("qwen2", is_tied=True, tensor_type="Q8_0").write(folder / "target.gguf")
    other = TinyModel("qwen2", num_layers=1, is_tied=True, tensor_type="Q8_0").write(folder / "other.gguf")
    return {"target": str(target), "drafts": {"small": str(other), "code": str(target)}}


@pytest.fixture
def llm(models: dict[str, Any]) -> Iterator[LLM]:
    with loaded(models) as llm:
        yield llm


def loaded(models: dict[str, Any], **more: Any) -> LLM:
    values = {"calibration": "off", "context_length": 256, "kv_memory": "64MiB", "draft_weights": "file"}
    return LLM(**models, routes=ROUTES, default_route="off", **{**values, **more})


class Watch:
    """Sees of each step who drafted, and that no sequence is read by two draft models."""

    def __init__(self, engine: Engine) -> None:
        self._holders = {n: d for n, d in engine.drafters.items() if isinstance(d, HoldsMemory)}
        self.together: set[frozenset[str]] = set()
        self.by_route: dict[str, set[str]] = {}
        self.passes: set[str] = set()

    def on_step(self, record: StepRecord) -> None:
        drafted = [part for part in record.sequences if part.num_drafted]
        self.together.add(frozenset(part.source or part.drafter or "" for part in drafted))
        for part in drafted:
            self.by_route.setdefault(part.route or "", set()).add(part.source or part.drafter or "")
        for part in record.sequences:
            held = [n for n, holder in self._holders.items() if holder.num_cached_tokens(part.number)]
            assert len(held) <= 1
        for one in record.draft_passes:
            self.passes.add(one.model)
            assert one.rows
            assert one.seconds > 0
        asked = {model_of(part.source or part.drafter or "") for part in drafted} - {None}
        assert asked <= {one.model for one in record.draft_passes}

    def on_finish(self, result: GenerationResult) -> None:
        pass


def answers(llm: LLM, params: SamplingParams, routes: Sequence[str]) -> list[GenerationResult]:
    """Answer all texts in one batch, each on its route."""
    engine, maker = llm.loaded.engine, llm._maker
    made = [
        maker.make(maker.encode(text), params, route=route) for text, route in zip(TEXTS, routes, strict=True)
    ]
    for request in made:
        engine.submit(request)
    found: dict[str, GenerationResult] = {}
    while engine.has_work:
        for chunk in engine.step():
            if chunk.result is not None:
                found[chunk.request_id] = chunk.result
    return [found[request.id] for request in made]


def token_ids(results: Sequence[GenerationResult]) -> list[tuple[int, ...]]:
    return [result.token_ids for result in results]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_each_route_has_its_own_in_one_batch_and_all_answers_are_those_without(
    llm: LLM, params: SamplingParams
) -> None:
    plain = answers(llm, params, ["off"] * len(TEXTS))
    watch = Watch(llm.loaded.engine)
    llm.loaded.engine.observers.add(watch)
    mixed = answers(llm, params, NAMES)
    assert token_ids(mixed) == token_ids(plain)
    assert watch.by_route["small"] == {"model:small"}
    assert watch.by_route["code"] == {"model:code"}
    assert any({"model:small", "model:code"} <= names for names in watch.together), "in one step"
    assert watch.passes == {"model:small", "model:code"}
    named = {result.route: result.speculation.drafter for result in mixed}
    assert (named["small"], named["code"]) == ("model:small", "model:code")
    policy = llm.loaded.engine.policy
    assert isinstance(policy, SpeculationPolicy)
    assert {"model:small", "model:code"} <= policy.costs.drafts.keys()
    rates = {one.source: one.rate for one in policy.report("code").acceptance}
    assert rates["model:code"] == 1.0, "the target's twin is always right"
    assert "model:small" not in rates


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_answers_are_the_same_over_preemption_and_where_draft_kv_is_given_up(
    models: dict[str, Any], params: SamplingParams
) -> None:
    with loaded(models) as roomy:
        plain = token_ids(answers(roomy, params, ["off"] * len(TEXTS)))
    pages = 14  # of 16 tokens each: less than six sequences of some 70 take
    with loaded(models, kv_memory=pages * page_bytes(models), context_length=None) as tight:
        engine, gave_up = tight.loaded.engine, 0
        for drafter in ("model:small", "model:code"):
            holder = engine.drafters[drafter]
            assert isinstance(holder, HoldsMemory)
            reclaim = holder.reclaim

            def counted(reclaim: Any = reclaim) -> bool:
                nonlocal gave_up
                given = reclaim()
                gave_up += given
                return bool(given)

            setattr(holder, "reclaim", counted)  # noqa: B010
        assert token_ids(answers(tight, params, NAMES)) == plain
        assert engine.num_preemptions > 0
        assert gave_up > 0
        assert engine.kv_stats().num_used == 0


def page_bytes(models: dict[str, Any]) -> int:
    with loaded(models) as llm:
        engine: Any = llm.loaded.engine
        parts = (engine._model, *(engine.drafters[name]._model for name in ("model:small", "model:code")))
        return plan_pages([part.kv_layout for part in parts], 16).page_bytes


def test_one_that_is_unloaded_leaves_the_other(llm: LLM) -> None:
    plain = token_ids(answers(llm, SAMPLED, ["off"] * len(TEXTS)))
    llm.loaded.engine.unload_drafter("model:small")
    found = answers(llm, SAMPLED, NAMES)
    assert token_ids(found) == plain
    drafted = {result.route: result.speculation.num_drafted for result in found}
    assert drafted["small"] == 0
    assert drafted["code"] > 0
    llm.loaded.engine.load_drafter("model:small")
    again = {result.route: result.speculation.num_drafted for result in answers(llm, SAMPLED, NAMES)}
    assert again["small"] > 0


def test_a_request_names_one_and_model_alone_is_the_first(models: dict[str, Any]) -> None:
    with LLM(**models, context_length=256, kv_memory="64MiB", draft_weights="file") as llm:
        (plain,) = llm.generate(TEXTS[0], SAMPLED, speculation=SpeculationParams(enabled=False))
        for asked, name in (
            ("model", "model:small"),
            ("mixed", "mixed:small"),
            ("model:code", "model:code"),
            (None, "model:small"),
        ):
            speculation = SpeculationParams(drafter=asked, draft_length=3)
            (found,) = llm.generate(TEXTS[0], SAMPLED, speculation=speculation)
            assert found.token_ids == plain.token_ids
            assert found.speculation.drafter == name
            assert found.speculation.num_drafted > 0
        with pytest.raises(InvalidParameterError, match=r"'model:large'.*'model:small'"):
            llm.generate("the", speculation=SpeculationParams(drafter="model:large"))
