"""What `inspect` finds in a file, against the presets whose figures are published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import transformers

from paceline.models.inspection import inspect_model
from paceline.models.presets import PRESETS


@pytest.mark.models
def test_smollm2(preset_path: Callable[[str], Path]) -> None:
    path = preset_path("smollm2-135m-instruct")
    found = inspect_model(path)
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
    found = inspect_model(preset_path(name))
    assert found.has_chat_template is PRESETS[name].has_chat_template
    tensor_bytes = sum(use.num_bytes for use in found.tensor_types)
    assert 0.9 * found.file_bytes < tensor_bytes < found.file_bytes
    assert found.num_parameters == sum(use.num_parameters for use in found.tensor_types)


def _write_folder(folder: Path) -> None:
    config = transformers.Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=None,
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    vocabulary = {chr(ord("a") + index): index for index in range(26)}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    library.decoder = tokenizers.decoders.ByteLevel()
    library.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "z", "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_folder_and_the_file_in_it_are_one_model(tmp_path: Path) -> None:
    _write_folder(tmp_path)
    found = inspect_model(tmp_path)
    assert found == inspect_model(tmp_path / "model.safetensors")
    assert (found.architecture, found.num_layers, found.context_length) == ("qwen2", 2, 512)
    assert found.kv_bytes_per_token == 2 * 2 * 2 * 8 * 4
    assert (found.tokenizer, found.has_chat_template) == ("tokenizer.json", True)
    assert [use.type for use in found.tensor_types] == ["F32"]
    layer = 32 * (32 + 2 * 16) + (32 + 2 * 16) + 32 * 32 + 3 * 32 * 48 + 2 * 32
    assert found.num_parameters == 64 * 32 + 2 * layer + 32
    assert found.file_bytes == (tmp_path / "model.safetensors").stat().st_size
