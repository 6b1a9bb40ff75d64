"""What the decoder makes of a file: rotary factors, tied heads, absent and surplus tensors, its KV memory."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.errors import CapacityError, MissingTensorError, ModelFileError
from paceline.models.build import build_decoder
from paceline.models.decoder import Decoder
from paceline.models.gguf_file import GGUFFile
from paceline.models.interface import SequenceSlice
from paceline.models.load import gguf_decoder
from paceline.models.scripted import ScriptedModel
from tests.models.hf_reference import hf_logits, hf_model
from tests.tiny_models import FAMILY_EXAMPLES, TinyModel

CPU = torch.device("cpu")


def build(model: TinyModel, tmp_path: Path) -> Decoder:
    return build_decoder(*gguf_decoder(GGUFFile.open(model.write(tmp_path / "tiny.gguf"))), CPU)


def last_logits(decoder: Decoder, token_ids: list[int], num_logits: int = 1) -> torch.Tensor:
    kv = decoder.allocate_kv(len(token_ids) // 16 + 1, 16)
    return decoder.forward([SequenceSlice(token_ids, 0, range(kv.num_blocks), num_logits)], kv)


def random_tokens(count: int) -> list[int]:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(5)).tolist()


def test_rope_factors_hold_at_far_positions(tmp_path: Path) -> None:
    """B55: an extra rotary tensor is applied."""
    factors = [1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 8.0]
    model = TinyModel("llama", rope_factors=factors, rope_base=500_000.0)
    file = GGUFFile.open(model.write(tmp_path / "tiny.gguf"))
    token_ids = random_tokens(3000)
    ours = last_logits(build_decoder(*gguf_decoder(file), CPU), token_ids, 64)
    expected = hf_logits(hf_model(file), token_ids)[-64:]
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)
    without = last_logits(build(replace(model, rope_factors=None), tmp_path / "without"), token_ids, 64)
    assert (without - expected).abs().max() > 0.1


def test_rope_factors_of_a_wrong_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"'rope_freqs.weight' of shape \[4\].*expected shape \[8\]"):
        build(TinyModel("llama", rope_factors=[1.0] * 4), tmp_path)


def test_without_a_head_the_embedding_is_the_head(tmp_path: Path) -> None:
    """B55: a file without `output.weight`."""
    model = TinyModel("llama", is_tied=True)
    tied = build(model, tmp_path)
    token_ids = random_tokens(20)
    file = GGUFFile.open(tmp_path / "tiny.gguf")
    assert "output.weight" not in file.tensors
    expected = hf_logits(hf_model(file), token_ids)
    torch.testing.assert_close(last_logits(tied, token_ids, 20), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "blk.1.ffn_down.weight"),
        ("llama", "blk.0.attn_norm.weight"),
        ("llama", "output_norm.weight"),
        ("llama", "token_embd.weight"),
        ("qwen2", "blk.1.attn_k.bias"),
        ("qwen3", "blk.0.attn_q_norm.weight"),
        ("gemma3", "blk.1.post_ffw_norm.weight"),
    ],
)
def test_a_missing_tensor_is_named(family: str, name: str, tmp_path: Path) -> None:
    """B55: one that is truly missing."""
    with pytest.raises(MissingTensorError, match=f"no tensor '{name}' in .*tiny.gguf"):
        build(TinyModel(family, drop_tensors=[name], sliding_window=24), tmp_path)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    wrong = TinyModel("llama", metadata={"llama.feed_forward_length": 128})
    with pytest.raises(ModelFileError, match=r"'blk.0.ffn_gate.weight' of shape \[96, 64\].*\[128, 64\]"):
        build(wrong, tmp_path)


class BiasedModel(TinyModel):
    """A family without biases, with Qwen2's added to its file."""

    def tensors(self) -> dict[str, np.ndarray]:
        others = TinyModel("qwen2", seed=7).tensors()
        return super().tensors() | {name: others[name] for name in others if name.endswith(".bias")}


def test_optional_biases_are_used(tmp_path: Path) -> None:
    """Where q, k or v has a bias, all three need one."""
    file = GGUFFile.open(BiasedModel("llama").write(tmp_path / "tiny.gguf"))
    biased = last_logits(build_decoder(*gguf_decoder(file), CPU), [1, 2, 3])
    assert not torch.equal(biased, last_logits(build(TinyModel("llama"), tmp_path / "plain"), [1, 2, 3]))
    with pytest.raises(MissingTensorError, match=r"blk\.1\.attn_v\.bias"):
        build(BiasedModel("llama", drop_tensors=["blk.1.attn_v.bias"]), tmp_path / "lacking")


def test_unused_tensors_are_logged_at_debug_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "paceline"):
        build(TinyModel("llama", metadata={"llama.block_count": 1}), tmp_path)
    unused = [record for record in caplog.records if "blk.1.attn_q.weight" in record.getMessage()]
    assert [record.levelno for record in unused] == [logging.DEBUG]


def test_sizes_are_reported(tmp_path: Path) -> None:
    decoder = build(FAMILY_EXAMPLES["gemma3"], tmp_path)
    assert decoder.kv_bytes_per_token() == 2 * 4 * 7 * 1 * 32
    assert decoder.context_length == 4096
    kv = decoder.allocate_kv(5, 8)
    assert (kv.num_blocks, kv.block_size) == (5, 8)
    assert kv.rows.nbytes == 5 * 8 * decoder.kv_bytes_per_token()


def test_an_empty_batch_gives_no_logits(tmp_path: Path) -> None:
    decoder = build(TinyModel(), tmp_path)
    assert decoder.forward([], decoder.allocate_kv(1, 16)).shape == (0, decoder.vocab_size)


def test_logits_belong_to_nobody_else(tmp_path: Path) -> None:
    """A caller may keep a step's logits, and write to them."""
    decoder = build(TinyModel(), tmp_path)
    first = last_logits(decoder, [1, 2, 3])
    kept = first.clone()
    last_logits(decoder, [4, 5, 6])
    assert torch.equal(first, kept)
    first.numpy()[:] = 0


def test_kv_memory_that_cannot_be_had_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="KV blocks of 8,192 bytes"):
        build(TinyModel(), tmp_path).allocate_kv(2**45, 16)


def test_blocks_must_cover_the_rows_and_exist(tmp_path: Path) -> None:
    decoder = build(TinyModel(), tmp_path)
    kv = decoder.allocate_kv(2, 16)
    with pytest.raises(ValueError, match="1 blocks of 16 do not cover 17 positions"):
        decoder.forward([SequenceSlice(range(17), 0, [0], 1)], kv)
    with pytest.raises(ValueError, match=r"block ids \[0, 2\] outside 0 .. 1"):
        decoder.forward([SequenceSlice(range(17), 0, [0, 2], 1)], kv)


def test_kv_of_another_model_is_refused(tmp_path: Path) -> None:
    decoder = build(TinyModel(), tmp_path)
    foreign = ScriptedModel(lambda _: [0.0], 1).allocate_kv(4, 16)
    with pytest.raises(TypeError, match="expected what this model's allocate_kv returned"):
        decoder.forward([SequenceSlice([1], 0, [0], 1)], foreign)
