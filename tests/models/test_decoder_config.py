"""What metadata mean for the decoder, and what is refused rather than ignored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ModelError, ModelFileError, UnsupportedModelError
from paceline.models.decoder_config import Activation, DecoderConfig, Rotary, RotaryLayout
from paceline.models.gguf_config import config_from_gguf
from paceline.models.gguf_file import GGUFFile
from paceline.models.rotary_scaling import Yarn
from tests.tiny_models import FAMILY_EXAMPLES, TinyModel


def describe(model: TinyModel, tmp_path: Path) -> DecoderConfig:
    return config_from_gguf(GGUFFile.open(model.write(tmp_path / "tiny.gguf")))


def test_llama(tmp_path: Path) -> None:
    config = describe(FAMILY_EXAMPLES["llama"], tmp_path)
    assert config == DecoderConfig(
        family="llama",
        num_layers=2,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=FAMILY_EXAMPLES["llama"].vocab_size,
        context_length=4096,
        norm_eps=pytest.approx(1e-6),
        rotary=Rotary(10_000.0),
        rotary_layout=RotaryLayout.INTERLEAVED,
    )
    assert config.score_scale == 0.25


def test_a_llama_with_a_window_slides_in_every_layer(tmp_path: Path) -> None:
    config = describe(FAMILY_EXAMPLES["mistral"], tmp_path)
    assert [config.window_of(layer) for layer in range(2)] == [24, 24]


def test_qwen(tmp_path: Path) -> None:
    two, three = (describe(FAMILY_EXAMPLES[name], tmp_path) for name in ("qwen2", "qwen3"))
    assert (two.has_qkv_bias, two.has_qk_norm, two.rotary_layout) == (True, False, RotaryLayout.HALVES)
    assert (three.has_qkv_bias, three.has_qk_norm, three.head_dim) == (False, True, 32)


def test_gemma3(tmp_path: Path) -> None:
    config = describe(FAMILY_EXAMPLES["gemma3"], tmp_path)
    assert [config.window_of(layer) for layer in range(7)] == [24, 24, 24, 24, 24, None, 24]
    assert [config.rotary_of(layer).base for layer in (4, 5)] == [10_000.0, 1e6]
    assert config.activation is Activation.GELU_TANH
    assert config.embedding_scale == 8.0
    assert config.has_post_norms
    assert config.has_qk_norm
    assert config.norm_offset == 0.0


def test_defaults_of_absent_keys(tmp_path: Path) -> None:
    names = ["attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.freq_base"]
    config = describe(TinyModel(drop_metadata=[f"llama.{name}" for name in names]), tmp_path)
    assert (config.num_kv_heads, config.head_dim, config.rotary.base) == (4, 16, 10_000.0)


def gemma(**metadata: Any) -> TinyModel:
    keys = {f"gemma3.{name.replace('__', '.')}": value for name, value in metadata.items()}
    return TinyModel("gemma3", num_layers=4, sliding_window=24, metadata=keys)


def test_linear_scaling_stretches_global_layers_only(tmp_path: Path) -> None:
    scaled = gemma(
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
        attention__sliding_window_pattern=2,
        rope__freq_base_swa=20_000.0,
    )
    config = describe(scaled, tmp_path)
    assert config.rotary_of(1) == Rotary(10_000.0, linear_factor=8.0)
    assert config.rotary_of(0) == Rotary(20_000.0)


def test_a_pattern_may_flag_each_layer(tmp_path: Path) -> None:
    flags = [False, True, True, False]
    config = describe(gemma(attention__sliding_window_pattern=flags), tmp_path)
    assert config.sliding_layers == {1, 2}
    with pytest.raises(ModelFileError, match=r"sliding_window_pattern is .* expected 4 flags"):
        describe(gemma(attention__sliding_window_pattern=[True]), tmp_path)


def test_the_attention_scale(tmp_path: Path) -> None:
    assert describe(gemma(attention__scale=0.5), tmp_path).score_scale == 0.5
    large = TinyModel("gemma3", num_layers=62, hidden_size=32, head_dim=4, sliding_window=8)
    assert describe(large, tmp_path).score_scale == pytest.approx((32 / 4) ** -0.5)


def llama(name: str, value: Any) -> TinyModel:
    return TinyModel(metadata={f"llama.{name}": value})


UNSUPPORTED = {
    "architecture": (
        TinyModel(metadata={"general.architecture": "mamba"}),
        "architecture 'mamba' in .*tiny.gguf; expected one of llama, qwen2, qwen3, gemma3",
    ),
    "experts": (llama("expert_count", 8), "llama.expert_count = 8"),
    "softcap": (llama("final_logit_softcapping", 30.0), "llama.final_logit_softcapping = 30.0"),
    "longrope": (
        llama("rope.scaling.type", "longrope"),
        "llama.rope.scaling.type = 'longrope'.*expected one of none, linear, yarn",
    ),
    "list of kinds": (llama("rope.scaling.type", ["yarn"]), "llama.rope.scaling.type = .*yarn"),
    "alpha": (llama("rope.scaling.alpha", 2.0), "llama.rope.scaling.alpha = 2.0"),
    "extrapolation": (llama("rope.scaling.yarn_ext_factor", 0.5), "rope.scaling.yarn_ext_factor = 0.5"),
    "value size": (llama("attention.value_length", 8), "llama.attention.value_length = 8.*head size 16"),
    "partial rotary": (llama("rope.dimension_count", 8), "llama.rope.dimension_count = 8"),
    "uneven layers": (llama("attention.head_count_kv", [1, 2]), "head_count_kv that differs between layers"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_would_be_ignored_is_refused(name: str, tmp_path: Path) -> None:
    model, message = UNSUPPORTED[name]
    with pytest.raises(UnsupportedModelError, match=message):
        describe(model, tmp_path)


def yarn(**scaling: Any) -> TinyModel:
    keys = {"type": "yarn", "factor": 4.0} | scaling
    return TinyModel(metadata={f"llama.rope.scaling.{key}": value for key, value in keys.items()})


def test_yarn(tmp_path: Path) -> None:
    config = describe(yarn(), tmp_path)
    attention_factor = pytest.approx(1 + 0.1 * math.log(4))
    assert config.rotary == Rotary(10_000.0, scaling=Yarn(4.0, 4096), attention_factor=attention_factor)
    assert config.context_length == 4 * 4096
    scaled = yarn(
        original_context_length=256,
        yarn_beta_fast=8.0,
        yarn_beta_slow=2.0,
        yarn_attn_factor=2.0,
        attn_factor=1.5,
    )
    config = describe(scaled, tmp_path)
    assert config.rotary == Rotary(10_000.0, scaling=Yarn(4.0, 256, 8.0, 2.0), attention_factor=3.0)
    assert config.context_length == 4096
    config = describe(yarn(yarn_log_multiplier=1.0), tmp_path)
    assert config.rotary.attention_factor == 1.0


def without(name: str) -> TinyModel:
    return TinyModel(drop_metadata=[f"llama.{name}"])


DAMAGED = {
    "no layers": (without("block_count"), "llama.block_count is missing; expected a positive whole number"),
    "no heads": (without("attention.head_count"), "llama.attention.head_count is missing"),
    "no epsilon": (without("attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon is missing"),
    "no context": (without("context_length"), "llama.context_length is missing"),
    "text": (llama("block_count", "two"), "llama.block_count is 'two'"),
    "zero": (llama("embedding_length", 0), "llama.embedding_length is 0"),
    "truth": (llama("attention.head_count", True), "llama.attention.head_count is True"),
    "base": (llama("rope.freq_base", 0.0), "llama.rope.freq_base is 0.0; expected a positive number"),
    "beta": (
        yarn(yarn_beta_fast=2.0, yarn_beta_slow=2.0),
        "yarn_beta_fast is 2.0; expected more than yarn_beta_slow, 2.0",
    ),
    "original length": (yarn(original_context_length=0), "original_context_length is 0; expected a positive"),
    "yarn's base": (
        TinyModel(rope_base=1.0, metadata={"llama.rope.scaling.type": "yarn"}),
        "rope.freq_base is 1.0; expected a base above 1",
    ),
    "groups": (llama("attention.head_count_kv", 3), "head_count_kv is 3; expected a divisor of 4 heads"),
    "odd head": (TinyModel(head_dim=15), "attention.key_length is 15; expected an even head size"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_senseless_metadata_are_named(name: str, tmp_path: Path) -> None:
    model, message = DAMAGED[name]
    with pytest.raises(ModelError, match=message) as caught:
        describe(model, tmp_path)
    assert isinstance(caught.value, ModelFileError)


def test_equal_values_for_all_layers_are_one_value(tmp_path: Path) -> None:
    assert describe(llama("attention.head_count_kv", [2, 2]), tmp_path).num_kv_heads == 2
