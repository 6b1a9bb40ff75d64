"""Lossless on real models: speculation on gives the tokens, text and log-probabilities of speculation off.

`make verify` runs the whole matrix on the default pair; here two of its prompts, and all eight on a small
model, cut short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from verify.lossless import PROMPTS, check, one_of_each_route, tokenise

from paceline.cli.input_file import read_requests
from paceline.drafters.model import ModelDrafter
from paceline.llm import LLM
from paceline.models.interface import CausalModel, KVStore, SequenceSlice

pytestmark = pytest.mark.models
PresetPath = Callable[[str], Path]


class SpoiledModel:
    """A draft model that is often right and often wrong: some of its logits are another token's."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model

    def forward(self, slices: Sequence[SequenceSlice], kv: KVStore) -> torch.Tensor:
        logits = self._model.forward(slices, kv).clone()
        wrong = [
            number for number, item in enumerate(slices) if sum(item.token_ids) % 3 == 0 and item.num_logits
        ]
        for number in wrong:
            logits[number] = logits[number].roll(1)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@pytest.fixture(scope="module", params=["native", "reference"])
def small(request: pytest.FixtureRequest, preset_path: PresetPath) -> Iterator[LLM]:
    """SmolLM2 with a spoiled copy of itself as the draft model."""
    path = str(preset_path("smollm2-135m-instruct"))
    with LLM(path, path, context_length=256, kv_memory="256MiB", kernels=request.param) as llm:
        drafter = llm.loaded.engine.drafters["model"]
        assert isinstance(drafter, ModelDrafter)
        drafter._model = SpoiledModel(drafter._model)  # type: ignore[assignment]
        yield llm


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_small_model_eight_prompts(small: LLM, temperature: float) -> None:
    prompts = tokenise(small, one_of_each_route(read_requests(PROMPTS)), max_prompt_tokens=12)
    assert len(prompts) == 8
    # The reference operators are ten times slower, and the engine around them is the same.
    draft_lengths = [5] if small.settings.kernels == "reference" else [1, 5]
    cells = list(
        check(small, prompts, num_tokens=12, temperatures=[temperature], draft_lengths=draft_lengths)
    )
    assert len(cells) == 4 * len(draft_lengths)
    assert not [str(cell) for cell in cells if not cell.is_lossless]
    model = [cell for cell in cells if cell.drafter == "model"]
    assert all(0 < cell.num_accepted < cell.num_drafted for cell in model)
    assert small.loaded.engine.pool.num_used == 0


def test_default_pair_two_prompts(preset_path: PresetPath) -> None:
    target = str(preset_path("qwen2.5-coder-1.5b-instruct"))
    draft = str(preset_path("qwen2.5-coder-0.5b-instruct"))
    requests = [r for r in read_requests(PROMPTS) if r.route in {"qa", "translation"}]
    with LLM(target, draft, context_length=512, kv_memory="256MiB") as llm:
        prompts = tokenise(llm, one_of_each_route(requests))
        cells = list(check(llm, prompts, num_tokens=16, draft_lengths=[5]))
    assert len(cells) == 8
    assert not [str(cell) for cell in cells if not cell.is_lossless]
    assert sum(cell.num_accepted for cell in cells if cell.drafter == "model") > 0
