"""The script for a GPU, on the machine that there is: what it would find, and what it says without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from verify import cuda

from paceline.models.decoder import Decoder
from paceline.models.interface import KVStore, SequenceSlice
from paceline.models.load import load_model
from tests.tiny_models import TinyModel

FEW = {"num_tokens": 4, "num_prompts": 2, "max_prompt_tokens": 20}


def pair(tmp_path: Path) -> cuda.Pair:
    target = TinyModel(num_layers=1).write(tmp_path / "target.gguf")
    draft = TinyModel(num_layers=1, seed=1).write(tmp_path / "draft.gguf")
    return cuda.Pair.parse(f"{target},{draft}")


def test_all_of_it_runs(tmp_path: Path) -> None:
    lines: list[str] = []
    report = cuda.verify_pair(pair(tmp_path), "cpu", lambda: True, lines.append, **FEW)
    assert report.is_lossless
    assert report.is_complete
    assert len(report.cells) == report.pair.num_cells == 16
    assert report.num_rows == report.num_rows_equal == 560
    assert set(report.speeds) == {
        f"{mode}, {how}" for mode in ("off", "model", "suffix") for how in ("alone", "8 at once")
    }
    assert len(lines) == 1 + 16 + 6


def test_it_stops_when_time_is_up(tmp_path: Path) -> None:
    report = cuda.verify_pair(pair(tmp_path), "cpu", lambda: False, lambda line: None, **FEW)
    assert len(report.cells) == 1
    assert not report.is_complete
    assert not report.speeds


def test_rows_that_see_their_batch_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(TinyModel(num_layers=1).write(tmp_path / "tiny.gguf")).model
    forward = Decoder.forward

    def leaky(self: Decoder, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        return forward(self, slices, kv) * (1 + len(slices) * 1e-6)

    monkeypatch.setattr(Decoder, "forward", leaky)
    num_rows, num_equal = cuda.rows_equal(model)
    assert 0 < num_equal < num_rows


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda.main([]) == 2
    assert "error: device 'cuda', which PyTorch does not see here; expected" in capsys.readouterr().err
