"""Rotary frequencies of the sizes that models have, against `transformers`' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from paceline.models.json_keys import JsonKeys
from paceline.models.rotary import RotaryTable, frequencies_of
from paceline.models.safetensors_rotary import GLOBAL, read_rotary

LLAMA_31 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
QWEN_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
}
SCALINGS = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama 3.1": LLAMA_31,
    "llama 3.2": LLAMA_31 | {"factor": 32.0},
    "qwen with yarn": QWEN_YARN,
    "no whole pairs": QWEN_YARN | {"truncate": False},
    "a range within one pair": QWEN_YARN | {"beta_fast": 1.02, "beta_slow": 1.0, "truncate": False},
    "a range of nothing": QWEN_YARN | {"original_max_position_embeddings": 4, "beta_fast": 2},
    "two scales": QWEN_YARN | {"mscale": 0.707, "mscale_all_dim": 1.0},
    "one scale": QWEN_YARN | {"mscale": 0.707},
    "a factor of its own": QWEN_YARN | {"attention_factor": 0.9},
    "a factor below one": QWEN_YARN | {"factor": 0.5},
}


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_and_attention_factor(name: str, tmp_path: Path) -> None:
    parameters: dict[str, Any] = SCALINGS[name]
    config = transformers.LlamaConfig(
        hidden_size=4096,
        num_attention_heads=32,
        max_position_embeddings=131072,
        rope_parameters=dict(parameters),
    )
    kind = parameters["rope_type"]
    if kind == "default":
        exponents = torch.arange(0, 128, 2).float() / 128
        expected, attention_factor = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    else:
        expected, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    keys = JsonKeys(tmp_path, json.loads(config.to_json_string(use_diff=False)))
    rotary = read_rotary(keys, GLOBAL, 1e4)
    ours = frequencies_of(rotary, 128, None)
    # Powers are another library's, so they may differ in the last bit; nothing else does.
    # PyTorch raises to powers in float32, with an error that depends on the instruction set.
    np.testing.assert_allclose(ours, expected.numpy(), rtol=5e-7, atol=0)
    assert rotary.attention_factor == pytest.approx(attention_factor, rel=1e-12)


def test_the_attention_factor_is_on_cos_and_sin() -> None:
    keys = JsonKeys(Path("config.json"), {"rope_parameters": QWEN_YARN | {"attention_factor": 1.5}})
    keys.values["max_position_embeddings"] = 32768  # type: ignore[index]
    rotary = read_rotary(keys, GLOBAL, 1e4)
    table = RotaryTable(rotary, 128, None, torch.device("cpu"))
    cos, sin = table.at(torch.tensor([0, 70_000]), 70_001)
    torch.testing.assert_close(cos * cos + sin * sin, torch.full_like(cos, 2.25))
