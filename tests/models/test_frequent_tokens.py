"""Reduced output layers of draft models: the lists, and logits of the tokens that are left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.llm import LLM
from paceline.models import frequent_tokens as module
from paceline.models.frequent_tokens import fingerprint, frequent_tokens
from paceline.models.gguf_file import GGUFFile
from paceline.models.interface import SequenceSlice
from paceline.models.load import gguf_decoder, load_model
from paceline.models.native_decoder import NativeDecoder
from paceline.models.native_weights import pack_weights
from paceline.models.options import Kernels, LoadOptions
from paceline.models.tokenizer import Tokenizer
from paceline.records import SamplingParams, SpeculationParams
from tests.tiny_models import TinyModel

REDUCED = LoadOptions(reduce_vocabulary=True)
LISTED = [200, 7, 65, 66, 3, 150]
"""A list for the tiny vocabulary, most frequent first."""
NUM_SHIPPED = 49152


@pytest.fixture(autouse=True)
def _fresh_lists() -> Iterator[None]:
    module._lists.cache_clear()
    yield
    module._lists.cache_clear()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model whose vocabulary there is a list for."""
    path = TinyModel("qwen2", tensor_type="Q8_0").write(tmp_path / "tiny.gguf")
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(path).metadata)
    np.savez(tmp_path / "tiny.npz", token_ids=np.array(LISTED), fingerprint=fingerprint(tokenizer))
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return path


def forward(model: NativeDecoder, num_rows: int = 3) -> torch.Tensor:
    part = SequenceSlice([5, 6, 7, 8, 9], 0, [0], num_rows)
    return model.forward([part], model.allocate_kv(1, 16))


def test_logits_of_the_tokens_that_are_left_are_the_same(path: Path) -> None:
    whole, reduced = load_model(path).model, load_model(path, "cpu", REDUCED).model
    assert isinstance(whole, NativeDecoder)
    assert isinstance(reduced, NativeDecoder)
    special = load_model(path).tokenizer.special_tokens.values()
    kept = sorted({*LISTED, *special})
    expected = torch.full((3, whole.vocab_size), -torch.inf)
    expected[:, kept] = forward(whole)[:, kept]
    assert torch.equal(forward(reduced), expected)
    assert torch.equal(forward(reduced, 1), expected[2:])  # and in memory that was used before
    assert reduced.weight_bytes < whole.weight_bytes


def test_every_number_of_rows_gives_the_same_bits(path: Path) -> None:
    reduced = load_model(path, "cpu", REDUCED).model
    kv = reduced.allocate_kv(4, 16)
    token_ids = list(range(40))
    whole = reduced.forward([SequenceSlice(token_ids, 0, range(4), 40)], kv)
    for position in range(40):
        alone = reduced.forward(
            [SequenceSlice(token_ids[position : position + 1], position, range(4), 1)], kv
        )
        assert torch.equal(alone[0], whole[position])


def test_lists_can_be_cut(path: Path) -> None:
    tokenizer = load_model(path).tokenizer
    special = set(tokenizer.special_tokens.values())
    found = frequent_tokens(tokenizer, 3)
    assert found is not None
    assert found.dtype == np.uint32
    assert found.tolist() == sorted({200, 7, 65} | special)


def test_a_list_is_for_one_vocabulary(path: Path, tmp_path: Path) -> None:
    other = TinyModel("gemma3", tensor_type="Q8_0", head_dim=32, sliding_window=24).write(
        tmp_path / "other.gguf"
    )
    loaded = load_model(other, "cpu", REDUCED)
    assert frequent_tokens(loaded.tokenizer) is None
    assert isinstance(loaded.model, NativeDecoder)
    assert forward(loaded.model).isfinite().all()


def test_the_reference_keeps_all_tokens(path: Path) -> None:
    options = replace(REDUCED, kernels=Kernels.REFERENCE)
    model = load_model(path, "cpu", options).model
    logits = model.forward([SequenceSlice([5], 0, [0], 1)], model.allocate_kv(1, 16))
    assert logits.isfinite().all()


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"])
def test_the_shipped_list_is_for_the_default_pair(name: str, preset_path: Callable[[str], Path]) -> None:
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(preset_path(name)).metadata)
    found = frequent_tokens(tokenizer)
    assert found is not None
    special = set(tokenizer.special_tokens.values())
    assert len(found) == NUM_SHIPPED + len(special)
    assert (np.diff(found.astype(np.int64)) > 0).all()
    assert found[-1] < tokenizer.num_real_tokens
    assert special <= set(found.tolist())
    text = "def main() -> None:\n    print('The answer is 42')\n"
    assert set(tokenizer.encode(text)) <= set(found.tolist())


def test_shipped_lists_rank_every_token_once() -> None:
    lists = module._lists()
    assert lists
    for ranked in lists.values():
        assert len(set(ranked.tolist())) == len(ranked) == NUM_SHIPPED


@pytest.mark.models
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_outputs_are_the_same_with_it(temperature: float, preset_path: Callable[[str], Path]) -> None:
    path = str(preset_path("qwen2.5-coder-0.5b-instruct"))
    params = SamplingParams(temperature=temperature, max_tokens=24, seed=7)
    # The third asks for words that no list of frequent tokens has.
    prompts = ["def quicksort(items):", "Der Zug nach", "Old Turkic letters: 𐰀 𐰁 𐰂 𐰃 𐰄"]
    with LLM(path, path, draft_length=5, context_length=128, kv_memory="128MiB") as llm:
        assert llm.settings.draft_vocab == "auto"
        plain = llm.generate(prompts, params, speculation=SpeculationParams(enabled=False))
        drafted = llm.generate(prompts, params)
    assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
    assert [r.text for r in drafted] == [r.text for r in plain]
    assert sum(r.speculation.num_accepted for r in drafted) > 0


@pytest.mark.parametrize("ids", [[3, 3], [4, 3], [0, 10**6]])
def test_ids_of_a_head_are_checked(ids: list[int], path: Path) -> None:
    config, source = gguf_decoder(GGUFFile.open(path))
    weights = pack_weights(source, config, head_ids=np.array([1, 2], np.uint32))
    with pytest.raises(ValueError, match="must be rising, and in the vocabulary"):
        NativeDecoder(config, replace(weights, head_ids=np.array(ids, np.uint32)))
