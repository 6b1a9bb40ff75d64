"""The engine on a device that no machine needs to have.

PyTorch's fake tensors carry a device and no numbers: an operator that is given tensors of two devices fails
as it would on real ones. So a whole run on the fake device shows that nothing is left on the CPU, from the
weights to the KV of the draft model, but for what crosses by `numpy(force=True)`: random numbers here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.engine import loading
from paceline.models import decoder, devices, load
from paceline.models.decoder import Decoder
from paceline.models.interface import SequenceSlice
from tests.tiny_models import FAMILY_EXAMPLES, SCALED_ROTARY, TinyModel

DEVICE = torch.device("lazy:0")
"""A kind of device that every build of PyTorch knows; without CUDA, "cuda" fails even for fake tensors."""


class Border:
    """Counts the tensors that cross to the CPU, and gives random numbers for them."""

    def __init__(self) -> None:
        self.num_crossings = 0
        self._rng = np.random.default_rng(0)

    def numpy(self, tensor: torch.Tensor, force: bool) -> np.ndarray:
        if tensor.device.type != "cpu" and not force:
            raise TypeError(f"can't convert {tensor.device} device type tensor to numpy")
        self.num_crossings += 1
        return self._rng.standard_normal(tensor.shape).astype(np.float32)


@pytest.fixture
def border(monkeypatch: pytest.MonkeyPatch) -> Iterator[Border]:
    counter = Border()
    monkeypatch.setattr(
        FakeTensor, "numpy", lambda self, *, force=False: counter.numpy(self, force), raising=False
    )
    for module in (load, loading):
        monkeypatch.setattr(module, "pick_device", lambda name: DEVICE)
    monkeypatch.setattr(loading, "free_memory", lambda device: 10**9, raising=True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield counter


MODELS = FAMILY_EXAMPLES | {"yarn": SCALED_ROTARY["yarn"]}


@pytest.mark.parametrize("name", MODELS)
def test_a_forward_pass_stays_on_its_device(name: str, tmp_path: Path, border: Border) -> None:
    model = MODELS[name]
    loaded = load.load_model(model.write(tmp_path / "tiny.gguf"), "cuda")
    assert isinstance(loaded.model, Decoder)
    kv = loaded.model.allocate_kv(40, 16)
    chunk = SequenceSlice(list(range(300)), 0, range(19), 1)
    logits = loaded.model.forward([chunk, SequenceSlice([1, 2, 3], 5, [20], 3)], kv)
    assert (logits.device, logits.shape) == (DEVICE, (4, loaded.model.vocab_size))
    assert border.num_crossings == 0


@pytest.mark.parametrize("drafter", ["model", "suffix"])
def test_a_whole_run_crosses_to_the_cpu_with_logits_only(
    drafter: str, tmp_path: Path, border: Border
) -> None:
    target = TinyModel(tensor_type="Q8_0", num_layers=3).write(tmp_path / "target.gguf")
    draft = TinyModel(seed=1, is_tied=True).write(tmp_path / "draft.gguf")
    prompts = [list(range(20)), [7, 8, 9, 7, 8, 9, 7, 8]]
    with LLM(target, draft, device="cuda", context_length=128) as llm:
        results = llm.generate(
            prompts,
            SamplingParams(max_tokens=8, temperature=0.7, seed=1, ignore_eos=True),
            speculation=SpeculationParams(drafter=drafter, draft_length=3),
        )
    assert [len(result.token_ids) for result in results] == [8, 8]
    assert sum(result.speculation.num_drafted for result in results) > 0
    assert border.num_crossings > 8


def test_a_tensor_left_on_the_cpu_would_be_noticed(
    tmp_path: Path, border: Border, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load.load_model(TinyModel().write(tmp_path / "tiny.gguf"), "cuda")
    kv = loaded.model.allocate_kv(1, 16)
    at = decoder.RotaryTable.at
    monkeypatch.setattr(decoder.RotaryTable, "at", lambda *given: [part.cpu() for part in at(*given)])
    with pytest.raises(RuntimeError, match="same device"):
        loaded.model.forward([SequenceSlice([1], 0, [0], 1)], kv)


def test_products_are_float32_on_an_accelerator() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        devices.prepare(torch.device("cpu"))
        assert torch.backends.cuda.matmul.allow_tf32
        devices.prepare(torch.device("cuda"))
        assert not torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_free_memory_is_the_devices_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (123, 456))
    assert devices.free_memory(torch.device("cuda")) == 123
    assert devices.free_memory(torch.device("cpu")) > 1000
