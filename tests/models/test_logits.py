"""Logits against `transformers` on the same weights in float32."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.kernels.dequantize import SUPPORTED_TYPES
from paceline.models.build import build_decoder
from paceline.models.decoder import Decoder
from paceline.models.gguf_file import GGUFFile
from paceline.models.interface import SequenceSlice
from paceline.models.load import gguf_decoder
from paceline.models.tokenizer import Tokenizer
from tests.models.hf_reference import hf_logits, hf_model
from tests.tiny_models import FAMILY_EXAMPLES, K_QUANT_SIZES, SCALED_ROTARY, TinyModel

PROMPTS = Path(__file__).parent.parent / "data" / "prompts.json"
MAX_PROMPT_TOKENS = 32
TOLERANCE = 1e-3
"""Greatest difference allowed, as a share of the range of the reference's logits."""


def our_logits(decoder: Decoder, token_ids: list[int], start: int = 0) -> torch.Tensor:
    """Return logits [num_tokens, vocab]; positions count from `start`, before which there is a filler."""
    num_blocks = (start + len(token_ids)) // 16 + 1
    kv = decoder.allocate_kv(num_blocks, 16)
    part = SequenceSlice(token_ids, start, range(num_blocks), len(token_ids))
    return decoder.forward([part], kv)


def difference(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the greatest difference as a share of the reference's range."""
    return float((ours - reference).abs().max() / (reference.max() - reference.min()))


def check(file: GGUFFile, prompts: list[list[int]]) -> float:
    """Compare all positions of all prompts; return the greatest difference."""
    decoder = build_decoder(*gguf_decoder(file), torch.device("cpu"))
    results = [our_logits(decoder, prompt) for prompt in prompts]
    del decoder
    gc.collect()
    reference = hf_model(file)
    worst = max(
        difference(ours, hf_logits(reference, prompt)) for ours, prompt in zip(results, prompts, strict=True)
    )
    print(f"{file.path.name}: greatest difference {worst:.2e} of the range")
    return worst


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "gemma-3-270m"])
def test_presets(name: str, preset_path: Callable[[str], Path]) -> None:
    file = GGUFFile.open(preset_path(name))
    tokenizer = Tokenizer.from_gguf(file.metadata)
    texts = [prompt["text"] for prompt in json.loads(PROMPTS.read_text("utf-8"))]
    prompts = [tokenizer.encode(text, add_special=True)[:MAX_PROMPT_TOKENS] for text in texts]
    assert len(prompts) == 20
    assert check(file, prompts) < TOLERANCE


@pytest.mark.parametrize("name", FAMILY_EXAMPLES)
def test_tiny_models(name: str, tmp_path: Path) -> None:
    """Prompts are longer than any window, so that what a window hides matters."""
    example = FAMILY_EXAMPLES[name]
    file = GGUFFile.open(example.write(tmp_path / "tiny.gguf"))
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in range(1, 100, 5)]
    assert example.sliding_window is None or max(map(len, prompts)) > 3 * example.sliding_window
    assert check(file, prompts) < TOLERANCE / 10


@pytest.mark.parametrize("name", SCALED_ROTARY)
def test_scaled_rotary(name: str, tmp_path: Path) -> None:
    """Prompts reach beyond the original length of each."""
    file = GGUFFile.open(SCALED_ROTARY[name].write(tmp_path / "tiny.gguf"))
    prompts = [np.random.default_rng(seed).integers(0, 256, 300).tolist() for seed in range(2)]
    assert check(file, prompts) < TOLERANCE / 10


@pytest.mark.parametrize("tensor_type", [name for name in SUPPORTED_TYPES if name != "F32"])
def test_tensor_types(tensor_type: str, tmp_path: Path) -> None:
    """The head and the embedding too, so that rows taken from the map are right."""
    sizes = K_QUANT_SIZES if tensor_type.endswith("_K") else {}
    file = GGUFFile.open(TinyModel("llama", tensor_type=tensor_type, **sizes).write(tmp_path / "tiny.gguf"))
    assert {tensor.type for tensor in file.tensors.values()} == {tensor_type, "F32"}
    assert check(file, [list(range(40, 80))]) < TOLERANCE / 10
