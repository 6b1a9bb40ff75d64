"""How a draft model is held unless told otherwise: in 4 bits, where kernels for that can run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.engine import EngineSettings
from paceline.drafters.model import ModelDrafter
from paceline.engine.loading import load_engine
from paceline.errors import ConfigError
from paceline.models.decoder import Decoder
from paceline.models.interface import CausalModel
from paceline.models.native_decoder import NativeDecoder
from tests.tiny_models import TinyModel


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return TinyModel(tensor_type="Q8_0").write(tmp_path / "tiny.gguf")


def models(path: Path, **settings: str) -> tuple[CausalModel, CausalModel]:
    """Return a target and its draft model, both from one file."""
    loaded = load_engine(
        EngineSettings(target=str(path), draft=str(path), context_length=64, kv_memory=10**6, **settings)
    )
    drafter = loaded.engine.drafters["model"]
    assert isinstance(drafter, ModelDrafter)
    return loaded.engine._model, drafter._model


def num_bytes(model: CausalModel) -> int:
    assert isinstance(model, NativeDecoder)
    return model.weight_bytes


def test_a_draft_model_is_held_in_4_bits_and_its_target_is_not(path: Path) -> None:
    target, draft = models(path)
    assert num_bytes(draft) < 0.6 * num_bytes(target)
    assert num_bytes(models(path, draft_weights="int4")[1]) == num_bytes(draft)


def test_a_draft_model_can_be_held_as_its_file_has_it(path: Path) -> None:
    target, draft = models(path, draft_weights="file")
    assert num_bytes(draft) == num_bytes(target)


def test_elsewhere_a_draft_model_stays_as_it_is(path: Path) -> None:
    assert isinstance(models(path, kernels="reference")[1], Decoder)
    with pytest.raises(ConfigError, match="weights as int4 with reference kernels"):
        models(path, kernels="reference", draft_weights="int4")
