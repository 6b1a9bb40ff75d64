"""Safetensors folders, as `transformers` writes them, and what can be wrong with them."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from paceline.errors import MissingTensorError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from paceline.models.build import build_decoder
from paceline.models.decoder import Decoder
from paceline.models.interface import SequenceSlice
from paceline.models.load import folder_decoder, load_model
from paceline.models.rotary_scaling import Yarn
from paceline.models.safetensors_file import read_safetensors, read_safetensors_file
from tests.models.hf_reference import hf_logits

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama linear": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=LINEAR, attention_bias=True),
    "llama yarn": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=YARN),
    "qwen2 yarn": lambda: transformers.Qwen2Config(
        **SIZES,
        rope_parameters=YARN | {"attention_factor": 0.7, "beta_fast": 8, "beta_slow": 1.5, "truncate": False},
    ),
    "qwen3 yarn": lambda: transformers.Qwen3Config(
        **SIZES, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "rope_theta": 1e6}
    ),
    "yarn from the length": lambda: transformers.MistralConfig(
        **SIZES | {"max_position_embeddings": 40},
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0},
    ),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=24),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2 sliding": lambda: transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=24, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES | {"head_dim": 32}),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 7, "num_key_value_heads": 1},
        sliding_window=24,
        query_pre_attn_scalar=20,
        rope_parameters=GEMMA_ROPE,
    ),
}
TOKENS = torch.randint(0, 256, (90,), generator=torch.Generator().manual_seed(2)).tolist()


def make(name: str, folder: Path, dtype: torch.dtype = torch.float32, **saving: Any) -> torch.nn.Module:
    """Save a random model and return it."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32)
    with torch.no_grad():
        for key, values in model.named_parameters():
            if "norm" in key or key.endswith("bias"):
                values += 0.2 * torch.randn(values.shape)
    model.to(dtype).save_pretrained(folder, **saving)
    # Read back: a model cast to half precision and back would keep rounded rotary frequencies.
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(decoder: Decoder) -> torch.Tensor:
    kv = decoder.allocate_kv(8, 16)
    return decoder.forward([SequenceSlice(TOKENS, 0, range(8), len(TOKENS))], kv)


def assert_same(ours: torch.Tensor, reference: torch.nn.Module) -> None:
    expected = hf_logits(reference, TOKENS)
    difference = (ours - expected).abs().max() / (expected.max() - expected.min())
    assert difference < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = make(name, tmp_path)
    assert_same(logits(build_decoder(*folder_decoder(tmp_path), CPU)), reference)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files(dtype: torch.dtype, tmp_path: Path) -> None:
    reference = make("qwen3", tmp_path, dtype)
    assert_same(logits(build_decoder(*folder_decoder(tmp_path), CPU)), reference)


def test_shards(tmp_path: Path) -> None:
    reference = make("llama", tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_same(logits(build_decoder(*folder_decoder(tmp_path), CPU)), reference)
    next(tmp_path.glob("*-00001-of-*")).unlink()
    with pytest.raises(ModelNotFoundError, match=r"00001-of-.*cannot be read"):
        folder_decoder(tmp_path)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def test_rotary_parameters_in_the_older_form(tmp_path: Path) -> None:
    """Before transformers 5 the base was `rope_theta`, and scaling apart from it."""
    reference = make("llama", tmp_path)
    scaling = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    edit_config(tmp_path, rope_parameters=..., rope_theta=500_000.0, rope_scaling=scaling)
    assert_same(logits(build_decoder(*folder_decoder(tmp_path), CPU)), reference)
    reference = make("gemma3", tmp_path)
    edit_config(
        tmp_path,
        rope_parameters=...,
        rope_theta=1e6,
        rope_local_base_freq=10_000.0,
        rope_scaling={"type": "linear", "factor": 8.0},
        layer_types=...,
        sliding_window_pattern=6,
    )
    assert_same(logits(build_decoder(*folder_decoder(tmp_path), CPU)), reference)


def test_yarn_in_the_older_form(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As it is added to a published config.json by hand, which still states the original length."""
    reference = make("yarn from the length", tmp_path)
    scaling = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 40, "finetuned": True}
    edit_config(tmp_path, rope_parameters=..., rope_theta=1e4, rope_scaling=scaling)
    config, source = folder_decoder(tmp_path)
    assert config.context_length == 320
    assert_same(logits(build_decoder(config, source, CPU)), reference)
    assert "rotary scaling 'yarn' has no finetuned; ignored" in caplog.text


def test_a_base_beside_the_parameters_counts(tmp_path: Path) -> None:
    make("llama yarn", tmp_path)
    bare = {key: value for key, value in YARN.items() if key != "rope_theta"}
    edit_config(tmp_path, rope_parameters=bare, rope_theta=5e5)
    assert folder_decoder(tmp_path)[0].rotary.base == 5e5


def test_an_original_length_beside_the_parameters_counts_more(tmp_path: Path) -> None:
    make("llama yarn", tmp_path)
    edit_config(tmp_path, original_max_position_embeddings=1024)
    scaling = folder_decoder(tmp_path)[0].rotary.scaling
    assert isinstance(scaling, Yarn)
    assert scaling.original_length == 1024


def save_tokenizer(folder: Path) -> None:
    vocabulary = {chr(33 + index): index for index in range(90)} | {"<eos>": 90}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.add_special_tokens(["<eos>"])
    library.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<eos>", "chat_template": "{{ messages[0]['content'] }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("file_name", ["", "model.safetensors"])
def test_a_folder_loads_whole(file_name: str, tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    reference = make("qwen2", folder)
    save_tokenizer(folder)
    loaded = load_model(folder / file_name)
    assert loaded.name == "my-model"
    assert loaded.context_length == 2048
    assert loaded.tokenizer.eos_ids == {90}
    assert loaded.chat_template is not None
    assert loaded.chat_template.encode([{"role": "user", "content": "!#"}]) == [0, 2]
    assert_same(logits(loaded.model), reference)


def test_a_stored_copy_of_a_tied_head_is_not_needed(tmp_path: Path) -> None:
    make("llama", tmp_path)
    edit_config(tmp_path, tie_word_embeddings=True)
    tied = logits(build_decoder(*folder_decoder(tmp_path), CPU))
    edit_config(tmp_path, tie_word_embeddings=False)
    assert not torch.equal(tied, logits(build_decoder(*folder_decoder(tmp_path), CPU)))


def test_an_absent_head_that_is_not_tied_is_missing(tmp_path: Path) -> None:
    make("qwen2", tmp_path)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(MissingTensorError, match=r"no tensor 'lm_head\.weight'"):
        folder_decoder(tmp_path)


UNSUPPORTED = [
    ({"model_type": "gemma3"}, "architecture 'gemma3'.*expected one of llama, qwen2, qwen3, gemma3"),
    ({"model_type": ...}, "architecture None"),
    ({"hidden_act": "relu"}, "hidden_act = 'relu'.*one of silu"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    (
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
        "rotary scaling 'longrope'.*expected one of default, linear, llama3, yarn",
    ),
    ({"rope_parameters": {"rope_type": ["yarn"], "rope_theta": 1e4}}, r"rotary scaling \['yarn'\]"),
    (
        {"rope_parameters": ..., "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rotary scaling 'dynamic'",
    ),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial rotary embedding"),
]


@pytest.mark.parametrize(("changes", "message"), UNSUPPORTED)
def test_what_would_be_ignored_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    make("llama", tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        folder_decoder(tmp_path)


DAMAGED_CONFIGS = [
    ({"hidden_size": ...}, "hidden_size is missing; expected a positive whole number"),
    ({"vocab_size": "many"}, "vocab_size is 'many'"),
    ({"rms_norm_eps": 0}, "rms_norm_eps is 0; expected a positive number"),
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor of 4"),
    ({"rope_parameters": LLAMA3 | {"high_freq_factor": 1.0}}, "a high_freq_factor above"),
    ({"rope_parameters": LLAMA3 | {"factor": None}}, "factor is None; expected a positive number"),
    ({"rope_parameters": YARN | {"factor": 0}}, "factor is 0; expected a positive number"),
    ({"rope_parameters": YARN | {"beta_fast": 0.5}}, "beta_fast is 0.5; expected a beta_fast above"),
    ({"rope_parameters": YARN | {"truncate": 1}}, "truncate is 1; expected true or false"),
    ({"rope_parameters": YARN | {"attention_factor": -1}}, "attention_factor is -1; expected a positive"),
    ({"rope_parameters": YARN | {"mscale": "x"}}, "mscale is 'x'; expected a positive number"),
    ({"rope_parameters": YARN | {"rope_theta": 0.5}}, "rope_theta is 0.5; expected a base above 1"),
    ({"original_max_position_embeddings": "8k"}, "original_max_position_embeddings is '8k'"),
    ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "expected a positive number"),
    ({"rope_parameters": "linear"}, "rope_parameters is 'linear'; expected an object"),
    ({"rope_parameters": {"full_attention": 1}}, "full_attention is 1; expected an object"),
    ({"rope_parameters": {"full_attention": None}}, "full_attention is None; expected an object"),
    ({"rope_parameters": None, "rope_scaling": [8]}, r"rope_scaling is \[8\]; expected an object"),
    ({"layer_types": [["full_attention"]], "model_type": "gemma3_text"}, "layer_types is"),
    ({"num_hidden_layers": 2**40, "model_type": "gemma3_text"}, "expected at most 1000 layers"),
]
UNKNOWN_KINDS = [
    ({"model_type": ["llama"]}, r"architecture \['llama'\]"),
    ({"hidden_act": ["silu"]}, r"hidden_act = \['silu'\]"),
]


@pytest.mark.parametrize(("changes", "message"), UNKNOWN_KINDS)
def test_a_list_where_a_name_belongs_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    make("llama", tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        folder_decoder(tmp_path)


@pytest.mark.parametrize(("changes", "message"), DAMAGED_CONFIGS)
def test_a_senseless_config_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    make("llama", tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(ModelFileError, match=message):
        folder_decoder(tmp_path)


def test_absent_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json in"):
        folder_decoder(tmp_path)
    make("qwen2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors cannot be read"):
        folder_decoder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"config\.json cannot be read"):
        folder_decoder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelFileError, match="a JSON list at the top"):
        folder_decoder(tmp_path)


def tensor_file(
    entry: dict[str, Any] | None = None, num_bytes: int = 8, name: str = "w", twice: str | None = None
) -> bytes:
    described = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | (entry or {})
    tensors = {name: described} | ({twice: described} if twice else {})
    return with_header(json.dumps({"__metadata__": {"format": "pt"}} | tensors).encode(), num_bytes)


def with_header(header: bytes, num_bytes: int = 8) -> bytes:
    return struct.pack("<Q", len(header)) + header + b"\0" * num_bytes


DAMAGED_FILES = {
    "a name twice": (with_header(b'{"w": {}, "w": {}}'), "the header of .*key 'w' twice"),
    "empty": (b"", "a header of 0 bytes in a file of 0"),
    "short": (b"\1\0\0", "a header of 1 bytes in a file of 3"),
    "header beyond the end": (struct.pack("<Q", 999) + b"{}", "a header of 999 bytes in a file of 10"),
    "absurd header": (struct.pack("<Q", 2**63) + b"{}", "a header of 9223372036854775808 bytes"),
    "not JSON": (with_header(b"{{"), "the header of .* cannot be read"),
    "not an object": (with_header(b"[]"), "the header of .*a JSON list at the top"),
    "nested without end": (with_header(b"[" * 100_000), "the header of .* cannot be read"),
    "infinite size": (tensor_file({"shape": [math.inf]}), "tensor 'w' badly described"),
    "endless shape": (tensor_file({"shape": [2**62] * 200_000}), "tensor 'w' with 8 bytes"),
    "no offsets": (tensor_file({"data_offsets": None}), "tensor 'w' badly described"),
    "truncated data": (
        tensor_file(num_bytes=7),
        "tensor 'w' reaches to byte 8; expected an end within 7 bytes",
    ),
    "backwards": (tensor_file({"data_offsets": [8, 0]}), "tensor 'w' reaches to byte 0"),
    "wrong size": (tensor_file({"shape": [3]}), r"tensor 'w' with 8 bytes; expected what \[3\] takes"),
    "negative": (tensor_file({"shape": [-2, -1]}), r"tensor 'w' with 8 bytes"),
}


@pytest.mark.parametrize("name", DAMAGED_FILES)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    data, message = DAMAGED_FILES[name]
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelFileError, match=message):
        read_safetensors(tmp_path)


def test_an_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd.safetensors").write_bytes(tensor_file({"dtype": "F8_E4M3"}))
    with pytest.raises(UnsupportedModelError, match=r"tensor 'w' of type F8_E4M3.*one of F32, F16, BF16"):
        read_safetensors_file(tmp_path / "odd.safetensors")


def index_of(weight_map: object) -> str:
    return json.dumps({"metadata": {"total_size": 16}, "weight_map": weight_map})


DAMAGED_INDEXES = {
    "not JSON": ("{", "cannot be read"),
    "no map": ("{}", r"no readable weight map \(NoneType\)"),
    "a number": (index_of(3), r"no readable weight map \(int\)"),
    "a list of shards": (index_of({"w": ["a.safetensors"]}), r"tensor 'w' in \['a.safetensors'\]"),
    "a tensor named twice": (
        '{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}',
        "key 'w' twice",
    ),
    "nowhere": (
        index_of({"w": "a.safetensors", "x": "a.safetensors"}),
        "tensor 'x' that a.safetensors lacks",
    ),
    "in another shard": (
        index_of({"w": "a.safetensors", "v": "a.safetensors"}),
        "tensor 'v' that a.safetensors lacks",
    ),
    "in two shards": (
        index_of({"w": "a.safetensors", "v": "both.safetensors"}),
        "tensor 'w' in both a.safetensors and both.safetensors; expected each tensor in one shard",
    ),
} | {
    f"outside: {shard!r}": (index_of({"w": shard}), "expected the plain name of a file in this folder")
    for shard in ("../w.safetensors", "/w.safetensors", "sub/w.safetensors", "..", ".", "", "a\\w", "a\0")
}


@pytest.mark.parametrize("name", DAMAGED_INDEXES)
def test_a_wrong_index_is_named(name: str, tmp_path: Path) -> None:
    index, message = DAMAGED_INDEXES[name]
    (tmp_path / "model.safetensors.index.json").write_text(index)
    (tmp_path / "a.safetensors").write_bytes(tensor_file())
    (tmp_path / "b.safetensors").write_bytes(tensor_file(name="v"))
    (tmp_path / "both.safetensors").write_bytes(tensor_file(name="w", twice="v"))
    with pytest.raises(ModelFileError, match=message):
        read_safetensors(tmp_path)


@pytest.mark.parametrize("shard", ["no.safetensors", "sub", "x" * 300, "\ud800"])
def test_a_shard_that_cannot_be_read_is_named(shard: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "model.safetensors.index.json").write_text(index_of({"w": shard}))
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        read_safetensors(tmp_path)


def test_shards_may_be_links_and_hold_more_than_the_index_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The hub's cache keeps links to files elsewhere; what the index does not name is said and left out."""
    elsewhere, folder = tmp_path / "blobs", tmp_path / "model"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "hash").write_bytes(tensor_file(twice="more"))
    (folder / "model-00001-of-00001.safetensors").symlink_to(elsewhere / "hash")
    (folder / "model.safetensors.index.json").write_text(index_of({"w": "model-00001-of-00001.safetensors"}))
    assert set(read_safetensors(folder)) == {"w"}
    assert "holds tensors that the index lacks: more" in caplog.text
