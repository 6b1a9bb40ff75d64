"""What `inspect` finds in a file, against the presets whose figures are published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.models.inspection import inspect_gguf
from paceline.models.presets import PRESETS


@pytest.mark.models
def test_smollm2(preset_path: Callable[[str], Path]) -> None:
    path = preset_path("smollm2-135m-instruct")
    found = inspect_gguf(path)
    assert found.file_bytes == PRESETS["smollm2-135m-instruct"].size
    assert found.architecture == "llama"
    assert found.num_parameters == 134_515_008
    assert (found.num_layers, found.num_heads, found.num_kv_heads) == (30, 9, 3)
    assert (found.hidden_size, found.vocab_size, found.context_length) == (576, 49_152, 8192)
    assert found.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4
    assert (found.tokenizer, found.has_chat_template) == ("gpt2 (smollm)", True)
    assert [(use.type, use.num_tensors) for use in found.tensor_types] == [
        ("Q4_1", 210),
        ("Q8_0", 1),
        ("F32", 61),
    ]


@pytest.mark.models
@pytest.mark.parametrize("name", PRESETS)
def test_each_preset_is_as_its_table_says(name: str, preset_path: Callable[[str], Path]) -> None:
    found = inspect_gguf(preset_path(name))
    assert found.has_chat_template is PRESETS[name].has_chat_template
    tensor_bytes = sum(use.num_bytes for use in found.tensor_types)
    assert 0.9 * found.file_bytes < tensor_bytes < found.file_bytes
    assert found.num_parameters == sum(use.num_parameters for use in found.tensor_types)
