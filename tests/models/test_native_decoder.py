"""The native decoder against the float32 reference on the same files, and what it refuses.

Two oracles. The reference with its activations rounded to 8 bits and its KV to 16, as the native decoder has
them, differs from it by the order of sums alone, until that order rounds an activation the other way, which
all later positions then see: some of the first rows agree to `EXACT`, all within `ROUNDED_TOLERANCE`. The
reference as it is differs by that rounding too; on real text and models the greatest difference of a logit is
below `TOLERANCE`, and most arg-maxes are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from verify.lossless import PROMPTS

from paceline.cli.input_file import read_requests
from paceline.errors import CapacityError, ConfigError
from paceline.kernels import reference
from paceline.kernels.activations import dequantise, quantise
from paceline.models.build import build_decoder, choose_decoder
from paceline.models.decoder_config import Rotary
from paceline.models.gguf_file import GGUFFile
from paceline.models.interface import CausalModel, SequenceSlice
from paceline.models.kv_arena import KVArena, plan_pages
from paceline.models.kv_store import PagedKVStore
from paceline.models.load import gguf_decoder
from paceline.models.native_decoder import NativeDecoder
from paceline.models.options import Kernels, LoadOptions, Weights
from paceline.models.tokenizer import Tokenizer
from tests.tiny_models import FAMILY_EXAMPLES, K_QUANT_SIZES, SCALED_ROTARY, TinyModel

CPU = torch.device("cpu")
NATIVE = LoadOptions(Kernels.NATIVE)
EXACT, ROUNDED_TOLERANCE, ROUNDED_MEAN_TOLERANCE = 1e-5, 0.08, 0.004
TOLERANCE = 0.12
"""Greatest difference of a logit, as a share of the range of the reference's logits at that position."""
MEAN_TOLERANCE = 0.01
SAME_ARG_MAX = 0.92
"""Least share of positions of real text at which both have the same most probable token; small models, unsure
of many of them, have about 0.95."""


def native(file: GGUFFile, options: LoadOptions = NATIVE) -> NativeDecoder:
    decoder = choose_decoder(*gguf_decoder(file), CPU, options)
    assert isinstance(decoder, NativeDecoder)
    return decoder


def tiny(tmp_path: Path, model: TinyModel) -> GGUFFile:
    return GGUFFile.open(model.write(tmp_path / "tiny.gguf"))


def logits(model: CausalModel, token_ids: list[int], block_size: int = 16) -> torch.Tensor:
    num_blocks = len(token_ids) // block_size + 1
    part = SequenceSlice(token_ids, 0, range(num_blocks), len(token_ids))
    return model.forward([part], model.allocate_kv(num_blocks, block_size))


def differences(ours: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Return each logit's difference as a share of its row's range."""
    spread = reference.amax(-1, keepdim=True) - reference.amin(-1, keepdim=True)
    return (ours - reference).abs() / spread


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the reference round as the native decoder does."""
    linear, write = reference.linear, PagedKVStore.write

    def rounded_linear(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        values = dequantise(quantise(np.ascontiguousarray(x.numpy())), x.shape[1])
        return linear(torch.from_numpy(values), weight, bias)

    def rounded_write(
        self: PagedKVStore, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        write(self, layer, slots, keys.half().float(), values.half().float())

    monkeypatch.setattr(reference, "linear", rounded_linear)
    monkeypatch.setattr(PagedKVStore, "write", rounded_write)


def assert_rounded_alike(file: GGUFFile) -> None:
    """To be used with `rounded`."""
    token_ids = tokens(300)
    found = differences(
        logits(native(file), token_ids), logits(build_decoder(*gguf_decoder(file), CPU), token_ids)
    )
    first = (found[:8].amax(-1) < EXACT).float().mean()
    print(f"greatest {found.max():.4f}, mean {found.mean():.5f}, first rows {first:.2f}")
    # A row is exact until one value is rounded to the other side, which this CPU's float32 library decides.
    assert first > 0
    assert found.max() < ROUNDED_TOLERANCE
    assert found.mean() < ROUNDED_MEAN_TOLERANCE


@pytest.mark.parametrize("name", FAMILY_EXAMPLES)
@pytest.mark.parametrize("tensor_type", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"])
def test_tiny_models_of_every_family(name: str, tensor_type: str, tmp_path: Path, rounded: None) -> None:
    assert_rounded_alike(tiny(tmp_path, replace(FAMILY_EXAMPLES[name], tensor_type=tensor_type)))


@pytest.mark.parametrize("tensor_type", ["Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants(tensor_type: str, tmp_path: Path, rounded: None) -> None:
    assert_rounded_alike(tiny(tmp_path, TinyModel(tensor_type=tensor_type, **K_QUANT_SIZES)))


def test_a_mixed_file(tmp_path: Path, rounded: None) -> None:
    """As Q5_K_M mixes them, with an embedding that needs no packed format."""
    others = {"ffn_down.weight": "Q6_K", "attn_v.weight": "Q6_K", "token_embd.weight": "Q2_K"}
    model = TinyModel(tensor_type="Q5_K", tensor_types=others, **K_QUANT_SIZES)
    assert_rounded_alike(tiny(tmp_path, model))


@pytest.mark.parametrize("name", SCALED_ROTARY)
def test_scaled_rotary(name: str, tmp_path: Path, rounded: None) -> None:
    assert_rounded_alike(tiny(tmp_path, replace(SCALED_ROTARY[name], tensor_type="Q8_0")))


@pytest.mark.parametrize("kept", ["scaling", "attention_factor"])
def test_half_of_yarn_would_be_noticed(kept: str, tmp_path: Path, rounded: None) -> None:
    file = tiny(tmp_path, replace(SCALED_ROTARY["yarn with every key"], tensor_type="Q8_0"))
    config, source = gguf_decoder(file)
    half = Rotary(config.rotary.base, **{kept: getattr(config.rotary, kept)})
    wrong = build_decoder(replace(config, rotary=half), source, CPU)
    token_ids = tokens(300)
    found = differences(logits(native(file), token_ids), logits(wrong, token_ids))
    assert found.max() > 2 * ROUNDED_TOLERANCE


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m", "qwen2.5-coder-0.5b-instruct"])
def test_real_models_on_real_text(name: str, preset_path: Callable[[str], Path]) -> None:
    file = GGUFFile.open(preset_path(name))
    # Prompts of several kinds, one after another: the same text whatever the version of Python.
    text = "\n".join(str(request.messages) for request in read_requests(PROMPTS)[::7])[:4000]
    token_ids = Tokenizer.from_gguf(file.metadata).encode(text, add_special=True)[:256]
    ours = logits(native(file), token_ids)
    expected = logits(build_decoder(*gguf_decoder(file), CPU), token_ids)
    found = differences(ours, expected)
    same = (ours.argmax(-1) == expected.argmax(-1)).float().mean()
    print(f"{name}: greatest {found.max():.4f}, mean {found.mean():.5f}, same arg-max {same:.3f}")
    assert found.max() < TOLERANCE
    assert found.mean() < MEAN_TOLERANCE
    assert same > SAME_ARG_MAX


def test_biases_of_every_kind(tmp_path: Path, rounded: None) -> None:
    """Llama files may have biases; those of gate and up are interleaved as their rows are."""
    model = replace(FAMILY_EXAMPLES["llama"], tensor_type="Q8_0")
    plain = tiny(tmp_path, model)
    sizes = {"attn_output": 64, "ffn_gate": 96, "ffn_up": 96, "ffn_down": 64}
    rng = np.random.default_rng(0)
    config, source = gguf_decoder(plain)
    some = next(iter(source.tensors.values()))
    biases = {
        f"blk.{layer}.{name}.bias": rng.standard_normal(size).astype(np.float32)
        for layer in range(2)
        for name, size in sizes.items()
    }
    more = {
        name: replace(some, name=name, shape=values.shape, type="F32", data=values.view(np.uint8))
        for name, values in biases.items()
    }
    biased = replace(source, tensors=dict(source.tensors) | more)
    token_ids = tokens(40)
    ours = logits(choose_decoder(config, biased, CPU, NATIVE), token_ids)
    assert differences(ours, logits(build_decoder(config, biased, CPU), token_ids)).max() < ROUNDED_TOLERANCE
    assert differences(ours, logits(native(plain), token_ids)).max() > TOLERANCE


def test_blocks_may_be_multiples_of_the_kernels(tmp_path: Path) -> None:
    decoder = native(tiny(tmp_path, TinyModel(tensor_type="Q8_0")))
    token_ids = tokens(100)
    assert torch.equal(logits(decoder, token_ids, 48), logits(decoder, token_ids))
    with pytest.raises(ConfigError, match="KV blocks of 8 positions; expected a multiple of 16"):
        decoder.allocate_kv(4, 8)
    with pytest.raises(CapacityError, match="KV blocks of 4,096 bytes"):
        decoder.allocate_kv(2**50, 16)


def test_kv_is_half_precision(tmp_path: Path) -> None:
    decoder = native(tiny(tmp_path, TinyModel(tensor_type="Q8_0")))
    assert decoder.kv_bytes_per_token() == 2 * 2 * 2 * (
        2 * 16
    )  # two layers, keys and values, two heads of 16
    assert decoder.allocate_kv(5, 16).native.nbytes == 5 * 16 * decoder.kv_bytes_per_token()


def test_logits_in_use_are_not_overwritten(tmp_path: Path) -> None:
    decoder = native(tiny(tmp_path, TinyModel(tensor_type="Q8_0")))
    kv = decoder.allocate_kv(1, 16)
    first = decoder.forward([SequenceSlice([1, 2, 3], 0, [0], 3)], kv)
    copy = first.clone()
    second = decoder.forward([SequenceSlice([4, 5, 6], 0, [0], 3)], kv)
    assert torch.equal(first, copy)
    assert not torch.equal(second, copy)
    del first
    num_bytes = decoder.workspace_bytes
    third = decoder.forward([SequenceSlice([1, 2, 3], 0, [0], 3)], kv)
    assert torch.equal(third, copy)
    assert decoder.workspace_bytes == num_bytes > 0


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (SequenceSlice([1, 10**6], 0, [0], 1), "a token id is out of range"),
        (SequenceSlice([-1], 0, [0], 1), "a token id is out of range"),
        (SequenceSlice([1], 0, [4], 1), "a block id is out of range"),
        (SequenceSlice([1], 16, [0], 1), "1 blocks do not cover 17 positions"),
        (SequenceSlice([1], 0, [0], 2), "more logits than rows"),
    ],
)
def test_what_is_out_of_range_is_refused(part: SequenceSlice, message: str, tmp_path: Path) -> None:
    decoder = native(tiny(tmp_path, TinyModel(tensor_type="Q8_0")))
    with pytest.raises(ValueError, match=message):
        decoder.forward([part], decoder.allocate_kv(4, 16))


def test_the_kv_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tiny(tmp_path, TinyModel(tensor_type="Q8_0"))
    other, ours = build_decoder(*gguf_decoder(file), CPU), native(file)
    part = SequenceSlice([1], 0, [0], 1)
    with pytest.raises(TypeError, match="KV of PagedKVStore"):
        ours.forward([part], other.allocate_kv(1, 16))
    deeper = native(tiny(tmp_path, TinyModel(tensor_type="Q8_0", num_layers=3)))
    with pytest.raises(ValueError, match="the keys and values are another model's"):
        ours.forward([part], deeper.allocate_kv(1, 16))


def test_a_pass_without_rows_gives_no_logits(tmp_path: Path) -> None:
    decoder = native(tiny(tmp_path, TinyModel(tensor_type="Q8_0")))
    kv = decoder.allocate_kv(1, 16)
    assert decoder.forward([], kv).shape == (0, decoder.vocab_size)
    assert decoder.forward([SequenceSlice([1, 2], 0, [0], 0)], kv).shape == (0, decoder.vocab_size)


def test_weights_of_8_and_4_bits(tmp_path: Path) -> None:
    file = tiny(tmp_path, TinyModel())
    token_ids = tokens(40)
    expected = logits(build_decoder(*gguf_decoder(file), CPU), token_ids)
    found = {
        weights: differences(logits(native(file, LoadOptions(weights=weights)), token_ids), expected).mean()
        for weights in (Weights.INT8, Weights.INT4)
    }
    assert 0 < found[Weights.INT8] < MEAN_TOLERANCE < found[Weights.INT4] < 10 * MEAN_TOLERANCE


def test_stages_are_timed(tmp_path: Path) -> None:
    decoder = native(tiny(tmp_path, TinyModel(tensor_type="Q8_0")))
    logits(decoder, tokens(20))
    seconds = decoder.native.stage_seconds()
    assert set(seconds) > {"norm", "qkv", "attention", "gate_up", "down", "head"}
    assert all(value > 0 for value in seconds.values())
    decoder.native.reset_stages()
    assert not any(decoder.native.stage_seconds().values())


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 200), (900, 1), (900, 6), (600, 300)])
def test_workspace_is_known_before_it_is_taken(start: int, count: int, reduced: bool, tmp_path: Path) -> None:
    file = tiny(tmp_path, TinyModel(tensor_type="Q8_0"))
    ids = np.arange(0, 200, 2, dtype=np.uint32) if reduced else None
    decoder = choose_decoder(*gguf_decoder(file), CPU, NATIVE, frequent_ids=ids)
    assert isinstance(decoder, NativeDecoder)
    kv = decoder.allocate_kv(64, 16)
    decoder.forward([SequenceSlice(tokens(count), start, range(64), count)], kv)
    most = decoder.workspace_bytes_for(count, count, start + count)
    assert 0.3 * most < decoder.workspace_bytes <= most


def test_two_models_share_pages(tmp_path: Path) -> None:
    """Each writes to pages of its own and to none of the other's."""
    models = [native(tiny(tmp_path / str(n), TinyModel(tensor_type="Q8_0", num_layers=n))) for n in (3, 1)]
    plan = plan_pages([model.kv_layout for model in models], 16)
    assert plan.block_sizes == (16, 48)
    arena = KVArena(8, plan.page_bytes, CPU)
    arena.memory.fill_(255)  # halves that are no numbers
    token_ids, pages = tokens(60), ([5, 0, 7, 2], [6, 1])
    stores = [model.kv_in(arena, size) for model, size in zip(models, plan.block_sizes, strict=True)]
    for cut in (33, 60):
        for model, store, ids in zip(models, stores, pages, strict=True):
            start = 0 if cut == 33 else 33
            found = model.forward([SequenceSlice(token_ids[start:cut], start, ids, 1)], store)
            assert torch.equal(found[0], logits(model, token_ids[:cut])[-1])
    assert bool((arena.memory[[3, 4]] == 255).all())
