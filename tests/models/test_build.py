"""Which arithmetic runs a model, and what is refused rather than replaced."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from paceline.errors import ConfigError, PacelineError, UnsupportedModelError
from paceline.kernels import _native
from paceline.kernels.native import use_instruction_set
from paceline.models import build
from paceline.models.decoder import Decoder
from paceline.models.load import load_model
from paceline.models.native_decoder import NativeDecoder
from paceline.models.options import Kernels, LoadOptions, Weights
from paceline.models.pages import release_pages
from tests.tiny_models import TinyModel

PACKED = TinyModel(tensor_type="Q8_0")


@pytest.mark.parametrize(
    ("model", "options", "kind"),
    [
        (PACKED, LoadOptions(), NativeDecoder),
        (PACKED, LoadOptions(Kernels.NATIVE), NativeDecoder),
        (PACKED, LoadOptions(Kernels.REFERENCE), Decoder),
        (TinyModel(), LoadOptions(), Decoder),
        (TinyModel(), LoadOptions(weights=Weights.INT8), NativeDecoder),
        (TinyModel(tensor_type="BF16"), LoadOptions(weights=Weights.INT8), NativeDecoder),
        (TinyModel(tensor_type="F16"), LoadOptions(weights=Weights.INT4), NativeDecoder),
        (PACKED, LoadOptions(weights=Weights.INT4), NativeDecoder),
        (PACKED, LoadOptions(weights=Weights.INT4, needs_weights=False), NativeDecoder),
        (PACKED, LoadOptions(Kernels.REFERENCE, Weights.INT4, needs_weights=False), Decoder),
        (TinyModel(head_dim=12), LoadOptions(weights=Weights.INT4, needs_weights=False), Decoder),
        # A head of 12 values is not whole activation groups, so auto leaves it to the reference.
        (TinyModel(head_dim=12, tensor_type="F16"), LoadOptions(), Decoder),
    ],
)
def test_kernels_are_chosen(model: TinyModel, options: LoadOptions, kind: type, tmp_path: Path) -> None:
    assert type(load_model(model.write(tmp_path / "tiny.gguf"), "cpu", options).model) is kind


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (
            TinyModel(),
            LoadOptions(Kernels.NATIVE),
            UnsupportedModelError,
            "of type F32 in .*Set weights to 'int8'",
        ),
        (
            TinyModel(head_dim=12),
            LoadOptions(Kernels.NATIVE),
            UnsupportedModelError,
            "width of all heads of 48",
        ),
        (
            TinyModel(),
            LoadOptions(Kernels.REFERENCE, Weights.INT8),
            ConfigError,
            "weights as int8 with reference kernels",
        ),
    ],
)
def test_what_was_asked_for_is_not_replaced(
    model: TinyModel, options: LoadOptions, error: type[PacelineError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        load_model(model.write(tmp_path / "tiny.gguf"), "cpu", options)


def test_a_model_on_an_accelerator_is_not_for_native_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PACKED.write(tmp_path / "tiny.gguf")
    # "meta" stands for a device that this machine may lack.
    monkeypatch.setattr("paceline.models.load.pick_device", torch.device)
    assert isinstance(load_model(path, "meta").model, Decoder)
    with pytest.raises(ConfigError, match="native kernels on device meta; expected device 'cpu'"):
        load_model(path, "meta", LoadOptions(Kernels.NATIVE))


def test_without_the_native_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = PACKED.write(tmp_path / "tiny.gguf")
    monkeypatch.setattr(build, "native", None)
    assert isinstance(load_model(path).model, Decoder)
    with pytest.raises(ConfigError, match="native kernels without the native module"):
        load_model(path, "cpu", LoadOptions(Kernels.NATIVE))


def test_the_choice_is_logged_once_for_each_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "paceline")
    load_model(PACKED.write(tmp_path / "packed.gguf"))
    load_model(TinyModel().write(tmp_path / "floats.gguf"))
    first, second = (record.getMessage() for record in caplog.records)
    assert f"packed.gguf runs on native kernels ({_native.isa()}, " in first
    assert "floats.gguf runs on the float32 reference on cpu: tensor 'output.weight' of type F32" in second


def test_instruction_sets_are_checked() -> None:
    before = _native.isa()
    try:
        for name in _native.isas():
            use_instruction_set(name)
            assert _native.isa() == name
        use_instruction_set(None)
        assert _native.isa() == _native.isas()[-1]
        with pytest.raises(
            ConfigError, match="instruction set 'mmx'; expected one that this machine has: portable"
        ):
            use_instruction_set("mmx")
    finally:
        _native.set_isa(before)


def mapped_kilobytes(path: Path) -> int:
    """Return how much of a mapped file counts as this process's memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.endswith(f" {path}")]
    sizes = [next(line for line in lines[start:] if line.startswith("Rss:")) for start in starts]
    return sum(int(size.split()[1]) for size in sizes)


def test_pages_are_given_back_after_packing(tmp_path: Path) -> None:
    path = TinyModel(tensor_type="Q8_0", hidden_size=512, intermediate_size=1024).write(
        tmp_path / "tiny.gguf"
    )
    loaded = load_model(path)
    assert loaded.num_bytes > 3_000_000
    # What is left is the embedding, which is read in place, and the file's head.
    assert mapped_kilobytes(path) < 1000


def test_memory_that_is_no_file_is_left_alone() -> None:
    data = torch.arange(100_000, dtype=torch.int32).numpy().view("uint8")
    release_pages(data)
    assert data.view("int32")[-1] == 99_999
