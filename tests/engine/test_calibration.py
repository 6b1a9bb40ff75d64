"""Step costs of tiny models: measured, kept, and used again."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.engine import EngineSettings
from paceline.engine import calibration
from paceline.engine.calibration import step_costs
from paceline.engine.loading import load_models
from paceline.llm import LLM
from paceline.models.load import LoadedModel
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.cost_store import CostStore
from paceline.records import SamplingParams, SpeculationParams
from tests.tiny_models import TinyModel

Pair = tuple[LoadedModel, LoadedModel | None, EngineSettings]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    TinyModel("qwen2", tensor_type="Q8_0").write(folder / "target.gguf")
    TinyModel("qwen2", num_layers=1, tensor_type="Q8_0").write(folder / "draft.gguf")
    return folder


def settings_of(folder: Path, **more: object) -> EngineSettings:
    return EngineSettings(
        target=str(folder / "target.gguf"), draft=str(folder / "draft.gguf"), context_length=512,
        kv_memory="64MiB", **{"speculation": "auto", **more},  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def pair(folder: Path) -> Pair:
    settings = settings_of(folder)
    return (*load_models(settings), settings)


def test_target_and_draft_model_are_measured_with_progress(pair: Pair, tmp_path: Path) -> None:
    told: list[tuple[float, str]] = []
    costs = step_costs(*pair, lambda share, text: told.append((share, text)), CostStore(tmp_path))
    assert set(calibration.ROWS) <= set(costs.target.rows)
    assert costs.target.rows[-1] == 128
    assert all(seconds > 0 for seconds in costs.target.seconds)
    assert costs.target.seconds_of(128) > costs.target.seconds_of(1)
    assert set(costs.drafts) == {"model"}
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert {text for _, text in told} == {"target", "draft model"}


def test_they_are_kept_by_models_machine_and_threads(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, drafts, settings = pair
    store = CostStore(tmp_path)
    first = step_costs(target, drafts, settings, store=store)
    measured: list[object] = []
    measure = calibration.measure
    monkeypatch.setattr(calibration, "measure", lambda *a: measured.append(a) or measure(*a))
    assert step_costs(target, drafts, settings, store=store) == first
    assert measured == []
    again = settings.model_copy(update={"calibration": "always"})
    assert step_costs(target, drafts, again, store=store).key == first.key
    assert len(measured) == 2
    monkeypatch.setattr(calibration, "num_threads", lambda: 99)
    assert step_costs(target, drafts, settings, store=store).key != first.key
    assert step_costs(target, {}, settings, store=store).drafts == {}


def test_an_engine_calibrates_where_its_policy_needs_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    told: list[float] = []
    plain = settings_of(folder, speculation="on")
    with LLM.from_settings(plain, lambda share, text: told.append(share)):
        assert told == []
    log = tmp_path / "decisions.jsonl"
    with LLM.from_settings(settings_of(folder, decision_log=log), lambda s, t: told.append(s)) as llm:
        assert told
        assert len(list((tmp_path / "step-costs").glob("*.json"))) == 1
        params = SamplingParams(max_tokens=30, temperature=0.7, seed=1)
        (adaptive,) = llm.generate("the def return", params)
        (off,) = llm.generate("the def return", params, speculation=SpeculationParams(enabled=False))
        assert adaptive.token_ids == off.token_ids
        policy = llm.loaded.engine.policy
        assert isinstance(policy, SpeculationPolicy)
        assert not policy.costs.is_guess
        assert policy.log.path == log
    with LLM.from_settings(settings_of(folder, calibration="off"), lambda s, t: told.append(s)) as llm:
        assert llm.loaded.engine.policy.costs.is_guess  # type: ignore[attr-defined]


def test_routes_of_the_settings_are_those_of_requests(folder: Path) -> None:
    from paceline.errors import InvalidParameterError

    settings = settings_of(
        folder, speculation="on", calibration="off",
        routes={
            "fast": {"speculation": "on", "draft_length": 2, "drafters": ["model"]},
            "slow": {"speculation": False},
        },
    )  # fmt: skip
    with LLM.from_settings(settings) as llm:
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        for route in ("fast", "slow"):
            llm.submit(llm.encode("the def"), params, request_id=route, route=route)
        found = {c.result.id: c.result for c in llm.run() if c.result is not None}
        assert found["fast"].speculation.num_drafted > 0
        assert found["fast"].route == "fast"
        assert found["slow"].speculation.num_drafted == 0
        assert found["fast"].token_ids == found["slow"].token_ids
        with pytest.raises(InvalidParameterError, match="route 'other'; expected one of 'fast', 'slow'"):
            llm.submit(llm.encode("the def"), params, route="other")
