"""Loading whole models: tokenizer, template and decoder from one path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import (
    ChatTemplateError,
    ConfigError,
    ModelFileError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from paceline.models.interface import SequenceSlice
from paceline.models.load import load_model
from tests.tiny_models import FAMILY_EXAMPLES, TinyModel


@pytest.mark.parametrize("name", FAMILY_EXAMPLES)
def test_every_family_loads_with_tokenizer_and_template(name: str, tmp_path: Path) -> None:
    example = FAMILY_EXAMPLES[name]
    loaded = load_model(example.write(tmp_path / "tiny.gguf"))
    assert loaded.name == f"Tiny {example.family}"
    assert loaded.context_length == loaded.model.context_length == 4096
    assert loaded.num_bytes == 4 * sum(tensor.size for tensor in example.tensors().values())
    assert loaded.tokenizer.vocab_size == loaded.model.vocab_size == example.vocab_size
    assert loaded.tokenizer.num_real_tokens == example.vocab_size - example.num_padding_tokens
    assert loaded.chat_template is not None
    prompt = loaded.chat_template.encode([{"role": "user", "content": "the return"}])
    kv = loaded.model.allocate_kv(8, 16)
    logits = loaded.model.forward([SequenceSlice(prompt, 0, range(8), 1)], kv)
    assert logits.shape == (1, example.vocab_size)
    assert logits.isfinite().all()


class Recorder:
    """A progress report that keeps what it is told."""

    def __init__(self) -> None:
        self.label, self.total, self.steps = "", 0, list[int]()

    def say(self, line: str) -> None:
        raise AssertionError(f"nothing to say while loading: {line}")

    @contextmanager
    def track(self, label: str, total: int, done: int = 0) -> Iterator[Recorder]:
        self.label, self.total = label, total
        yield self

    def advance(self, num_bytes: int) -> None:
        self.steps.append(num_bytes)

    def note(self, text: str) -> None:
        raise AssertionError(f"nothing to note while loading: {text}")


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_loading_reports_every_byte_once(name: str, tmp_path: Path) -> None:
    """Also those of an embedding that stays in the file, and of tensors that nothing asks for."""
    recorder = Recorder()
    example = replace(FAMILY_EXAMPLES[name], metadata={f"{name}.block_count": 1})
    loaded = load_model(example.write(tmp_path / "tiny.gguf"), progress=recorder)
    assert recorder.label == f"Loading Tiny {name}"
    assert sum(recorder.steps) == recorder.total == loaded.num_bytes
    assert len(recorder.steps) > 10


def test_small_models_load_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_model(TinyModel().write(tmp_path / "tiny.gguf"))
    assert capsys.readouterr() == ("", "")


def test_large_models_report_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.models.load.LARGE_BYTES", 1000)
    monkeypatch.setattr("paceline.models.download_progress.REPORT_SECONDS", 0.0)
    load_model(TinyModel().write(tmp_path / "tiny.gguf"))
    output = capsys.readouterr()
    assert output.out == ""
    assert "Loading Tiny llama: 0 of 0 MB" in output.err


def test_a_model_without_a_template_loads(tmp_path: Path) -> None:
    assert load_model(TinyModel(chat_template=None).write(tmp_path / "tiny.gguf")).chat_template is None


def test_a_model_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    path = TinyModel(drop_metadata=["general.name"]).write(tmp_path / "my-model.gguf")
    assert load_model(path).name == "my-model"


def test_more_tokens_than_embedding_rows_are_refused(tmp_path: Path) -> None:
    vocabulary, num_rows = TinyModel().vocabulary(), TinyModel().vocab_size
    more = {
        "tokenizer.ggml.tokens": [*vocabulary["tokenizer.ggml.tokens"], "one too many"],
        "tokenizer.ggml.token_type": [*vocabulary["tokenizer.ggml.token_type"], 1],
    }
    with pytest.raises(ModelFileError, match=f"{num_rows + 1} tokens and {num_rows} embedding rows"):
        load_model(TinyModel(metadata=more).write(tmp_path / "tiny.gguf"))


def test_devices_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TinyModel().write(tmp_path / "tiny.gguf")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert load_model(path, "auto").model.vocab_size
    with pytest.raises(ConfigError, match="device 'cuda', which PyTorch does not see here"):
        load_model(path, "cuda")
    with pytest.raises(ConfigError, match="device 'tpu'; expected auto, cpu or cuda"):
        load_model(path, "tpu")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nothing\.gguf cannot be read"):
        load_model(tmp_path / "nothing.gguf")


SENSELESS = [
    ("llama.block_count", 2**31, "llama.block_count is 2147483648; expected at most 1000 layers"),
    ("llama.embedding_length", 2**32 - 1, "tensor 'blk.0.attn_norm.weight' of shape"),
    ("llama.feed_forward_length", 2**32 - 1, "tensor 'blk.0.ffn_gate.weight' of shape"),
    ("llama.context_length", "long", "llama.context_length is 'long'; expected a positive whole number"),
    ("llama.attention.layer_norm_rms_epsilon", float("nan"), "is nan; expected a positive number"),
    ("llama.rope.freq_base", True, "is True; expected a positive number"),
    ("tokenizer.ggml.model", ["gpt2"], "tokenizer.ggml.model = .*expected a string"),
    ("tokenizer.ggml.pre", 2, "tokenizer.ggml.pre = 2; expected a string"),
    ("tokenizer.ggml.tokens", 5, "tokenizer.ggml.tokens = 5; expected an array of str"),
    ("tokenizer.ggml.tokens", [1, 2], "tokenizer.ggml.tokens = .*expected an array of str"),
    ("tokenizer.ggml.token_type", ["x"], "tokenizer.ggml.token_type = .*int entries"),
    ("tokenizer.ggml.token_type", [1, 2], "tokenizer.ggml.token_type has 2 entries"),
    ("tokenizer.ggml.merges", [1], "tokenizer.ggml.merges = .*expected an array of str"),
    ("tokenizer.ggml.bos_token_id", "<s>", "tokenizer.ggml.bos_token_id = '<s>'; expected an id below"),
    ("tokenizer.ggml.eos_token_id", float("inf"), "tokenizer.ggml.eos_token_id = inf; expected an id below"),
    ("tokenizer.ggml.add_bos_token", "no", "tokenizer.ggml.add_bos_token = 'no'; expected true or false"),
]


@pytest.mark.parametrize(("key", "value", "message"), SENSELESS)
def test_a_senseless_key_is_named(key: str, value: object, message: str, tmp_path: Path) -> None:
    path = TinyModel(num_layers=1, metadata={key: value}).write(tmp_path / "tiny.gguf")
    with pytest.raises(ModelFileError, match=message):
        load_model(path)


def test_a_list_of_lists_for_a_size_is_named(tmp_path: Path) -> None:
    path = TinyModel(metadata={"llama.context_length": [[1], [2]]}).write(tmp_path / "tiny.gguf")
    with pytest.raises(UnsupportedModelError, match="context_length that differs between layers"):
        load_model(path)


def test_token_types_beyond_the_specification_are_named(tmp_path: Path) -> None:
    types = TinyModel().vocabulary()["tokenizer.ggml.token_type"]
    path = TinyModel(metadata={"tokenizer.ggml.token_type": [300, *types[1:]]}).write(tmp_path / "tiny.gguf")
    with pytest.raises(ModelFileError, match="token_type has the number 300; expected numbers from 0 to 6"):
        load_model(path)


@pytest.mark.parametrize("template", [5, ["{{ messages }}"], "{{ " + "(" * 5000, "{% for a in b %}" * 200])
def test_a_template_that_cannot_be_one_is_named(template: object, tmp_path: Path) -> None:
    path = TinyModel(metadata={"tokenizer.chat_template": template}).write(tmp_path / "tiny.gguf")
    with pytest.raises(ChatTemplateError, match="no Jinja template"):
        load_model(path)
