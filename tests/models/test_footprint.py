"""What a model would take, held to what it takes once it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.kernels.packed import PACKED_FORMATS, UNITS, Matrix, PackedLinear, packed_bytes
from paceline.models.footprint import Footprint, footprint
from paceline.models.frequent_tokens import frequent_tokens
from paceline.models.gguf_file import GGUFFile
from paceline.models.load import load_model
from paceline.models.native_decoder import NativeDecoder
from paceline.models.options import Kernels, LoadOptions, Weights
from paceline.models.tokenizer import Tokenizer
from tests.kernels.weights import random_weights
from tests.tiny_models import FAMILY_EXAMPLES, K_QUANT_SIZES, TinyModel

PASSES = [(1, 1, 1), (8, 8, 300), (256, 8, 4096), (512, 512, 1000)]
NATIVE = LoadOptions(Kernels.NATIVE)
DRAFT = LoadOptions(Kernels.NATIVE, Weights.INT4, needs_weights=False, reduce_vocabulary=True)


@pytest.mark.parametrize("packed_format", PACKED_FORMATS)
@pytest.mark.parametrize("num_rows", [16, 24, 100])
@pytest.mark.parametrize("num_inputs", [256, 768])
def test_packed_bytes_are_those_of_packed_weights(packed_format: str, num_rows: int, num_inputs: int) -> None:
    data = random_weights(packed_format, num_rows, num_inputs)
    packed = PackedLinear([Matrix(packed_format, data)], num_inputs)
    assert packed_bytes(packed_format, num_rows, num_inputs) == packed.nbytes


def test_every_format_has_its_units_and_a_half_unit_takes_a_whole_one() -> None:
    assert set(UNITS) == set(PACKED_FORMATS)
    packed = PackedLinear([Matrix("Q8_0", random_weights("Q8_0", 16, 96))], 96)
    assert packed_bytes("Q8_0", 16, 96) == packed.nbytes


def check(path: Path, options: LoadOptions) -> Footprint:
    said, model = footprint(path, options), load_model(path, options=options).model
    assert said.is_native == isinstance(model, NativeDecoder)
    if isinstance(model, NativeDecoder):
        assert said.weight_bytes == model.weight_bytes
    assert said.kv == model.kv_layout
    assert said.vocab_size == model.vocab_size
    assert [said.workspace(*one) for one in PASSES] == [model.workspace_bytes_for(*one) for one in PASSES]
    return said


@pytest.mark.parametrize("options", [NATIVE, DRAFT, LoadOptions(Kernels.REFERENCE)])
@pytest.mark.parametrize("kind", FAMILY_EXAMPLES)
def test_of_every_family(tmp_path: Path, kind: str, options: LoadOptions) -> None:
    model = replace(FAMILY_EXAMPLES[kind], tensor_type="Q8_0")
    said = check(model.write(tmp_path / "tiny.gguf"), options)
    assert said.num_parameters == sum(values.size for values in model.tensors().values())


@pytest.mark.parametrize("tensor_type", ["Q4_K", "Q6_K", "Q3_K", "IQ4_NL"])
def test_of_k_quants_and_of_types_that_are_packed_as_others(tmp_path: Path, tensor_type: str) -> None:
    path = TinyModel("llama", tensor_type=tensor_type, **K_QUANT_SIZES).write(tmp_path / "tiny.gguf")
    for options in (NATIVE, DRAFT):
        check(path, options)


def test_floating_point_files_run_on_the_reference_unless_8_bits_are_asked_for(tmp_path: Path) -> None:
    model = TinyModel("llama", tensor_type="F32")
    path = model.write(tmp_path / "tiny.gguf")
    said = check(path, LoadOptions())
    assert not said.is_native
    matrices = [v for name, v in model.tensors().items() if v.ndim == 2 and name != "token_embd.weight"]
    assert said.weight_bytes == 4 * sum(int(np.prod(values.shape)) for values in matrices)
    assert check(path, LoadOptions(weights=Weights.INT8)).is_native


@pytest.mark.models
def test_of_real_models_with_a_reduced_output_layer(preset_path: Callable[[str], Path]) -> None:
    check(preset_path("smollm2-135m-instruct"), NATIVE)
    path = preset_path("qwen2.5-coder-0.5b-instruct")
    said = check(path, DRAFT)
    ids = frequent_tokens(Tokenizer.from_gguf(GGUFFile.open(path).metadata))
    assert ids is not None
    assert len(ids) < said.vocab_size, "the list is in use, or this shows nothing"
