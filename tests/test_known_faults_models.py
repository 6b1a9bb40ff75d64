"""Faults that other engines had in files and texts that people bring: tiny whole models, and SmolLM2."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.drafters.scripted import ScriptedDrafter
from paceline.errors import EmptyPromptError, UnsupportedModelError
from paceline.records import FinishReason, GenerationResult
from tests.tiny_models import TinyModel

OFF = SpeculationParams(enabled=False)
LIMITS = {"context_length": 160, "kv_memory": "16MiB"}
CHAT = [{"role": "user", "content": "the def return in the er on to he th an re"}]


def outcome(result: GenerationResult) -> tuple[Any, ...]:
    return result.token_ids, result.text, result.finish_reason, result.usage


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = str(TinyModel("qwen2", tensor_type="Q8_0").write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))
    with LLM(path, path, **LIMITS) as llm:
        yield llm


@pytest.mark.parametrize("drafter", ["suffix", "model"])
@pytest.mark.parametrize("prompt", [" ", "the", [5]])
def test_one_token_is_a_prompt_and_none_is_refused(llm: LLM, drafter: str, prompt: Any) -> None:
    """B50: after prompts of no token, one of a single token and an ordinary one are what they are alone."""
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    on = SpeculationParams(drafter=drafter)
    for nothing in ("", [""], [[]]):
        with pytest.raises(EmptyPromptError):
            llm.generate(nothing, params, speculation=on)  # type: ignore[arg-type]
    (off,) = llm.generate(prompt, params, speculation=OFF)
    assert off.usage.prompt_tokens == 1
    assert outcome(llm.generate(prompt, params, speculation=on)[0]) == outcome(off)
    normal = [llm.generate("return in the def", params, speculation=s)[0] for s in (OFF, on)]
    assert outcome(normal[0]) == outcome(normal[1])
    assert llm.loaded.engine.pool.num_used == 0


def test_an_empty_prompt_is_the_bos_alone_where_the_model_has_one(tmp_path: Path) -> None:
    """B50: with a tokenizer that adds one, "" is a prompt of one token."""
    model = TinyModel("gemma3", num_layers=6, sliding_window=32, is_tied=True).write(tmp_path / "bos.gguf")
    with LLM(str(model), drafter="suffix", **LIMITS) as llm:
        params = SamplingParams(max_tokens=9, ignore_eos=True)
        results = [llm.generate("", params, speculation=s)[0] for s in (OFF, None)]
        assert llm.encode("") == [llm.loaded.tokenizer.bos_id]
        assert results[0].usage.prompt_tokens == 1
        assert outcome(results[0]) == outcome(results[1])


def test_target_and_drafter_see_the_ids_of_the_template_prefix_hit_or_not(llm: LLM) -> None:
    """B53: the chat route, twice: same ids, same answer, and the draft model's text begins with them."""
    seen: list[tuple[int, ...]] = []

    def spy(asked: Any) -> list[int]:
        seen.append(tuple(asked.token_ids))
        return []

    engine = llm.loaded.engine
    engine.clear_prefix_cache()
    engine._drafters["spy"] = ScriptedDrafter(spy)
    ids = llm.encode_chat(CHAT)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    first, again = (llm.chat(CHAT, params, speculation=SpeculationParams(drafter="spy"))[0] for _ in range(2))
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, (len(ids) - 1) // 16 * 16)
    assert again.num_cached_tokens > 0
    assert outcome(first) == outcome(again)
    assert first.usage.prompt_tokens == len(ids)
    assert seen
    assert {history[: len(ids)] for history in seen} == {tuple(ids)}


@pytest.mark.parametrize("architecture", ["mamba", "mamba2", "rwkv7", "jamba", "lfm2", "qwen3next"])
def test_a_model_with_recurrent_state_is_refused_at_load(architecture: str, tmp_path: Path) -> None:
    """B34: state that cannot be taken back is never drafted over: such a file does not load."""
    path = TinyModel(metadata={"general.architecture": architecture}).write(tmp_path / "recurrent.gguf")
    with pytest.raises(UnsupportedModelError, match=f"architecture '{architecture}'.*expected one of llama"):
        LLM(str(path), drafter="suffix", **LIMITS)


def test_without_an_end_token_length_and_stop_strings_end_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B56: no BOS, no end token, no word about adding one: nothing is assumed, and the log says so."""
    keys = ("bos_token_id", "eos_token_id", "add_bos_token")
    vocabulary = TinyModel("qwen2").vocabulary()
    kinds = [1 if kind == 3 else kind for kind in vocabulary["tokenizer.ggml.token_type"]]
    model = TinyModel(
        "qwen2",
        metadata={"tokenizer.ggml.token_type": kinds},
        drop_metadata=[f"tokenizer.ggml.{key}" for key in keys],
    )
    with caplog.at_level(logging.WARNING), LLM(str(model.write(tmp_path / "endless.gguf")), **LIMITS) as llm:
        assert "no end-of-text token" in caplog.text
        assert (llm.loaded.tokenizer.bos_id, llm.loaded.tokenizer.eos_ids) == (None, frozenset())
        assert llm.encode("the") == llm.loaded.tokenizer.encode("the")
        (whole,) = llm.generate("the", SamplingParams(max_tokens=30))
        assert (whole.usage.completion_tokens, whole.finish_reason) == (30, FinishReason.LENGTH)
        stop = whole.text[8:10]
        (cut,) = llm.generate("the", SamplingParams(max_tokens=30, stop=stop))
        assert (cut.text, cut.finish_reason) == (whole.text[: whole.text.index(stop)], FinishReason.STOP)


def test_an_end_of_turn_ends_a_chat_where_the_end_of_text_is_another_token(tmp_path: Path) -> None:
    """B56: whichever of the two the model says; with drafts behind it or without."""
    model = TinyModel("qwen2", tensor_type="Q8_0", metadata={"tokenizer.ggml.eos_token_id": 256})
    path = str(model.write(tmp_path / "turn.gguf"))
    with LLM(path, path, **LIMITS) as llm:
        tokenizer = llm.loaded.tokenizer
        turn, text_end = tokenizer.token_id("<|im_end|>"), tokenizer.token_id("<|endoftext|>")
        assert turn != text_end
        assert {turn, text_end} <= tokenizer.eos_ids
        for end in (turn, text_end):
            assert end is not None
            # Sure to come: once, after a few tokens, for which it is banned.
            params = SamplingParams(max_tokens=30, min_tokens=5, logit_bias={end: 100.0})
            results = [llm.chat(CHAT, params, speculation=s)[0] for s in (OFF, None)]
            assert outcome(results[0]) == outcome(results[1])
            assert results[0].token_ids[5] == end
            assert (len(results[0].token_ids), results[0].finish_reason) == (6, FinishReason.STOP)


WORD, OTHER = 260, 900


@pytest.mark.models
def test_greedy_with_ngram_drafts_on_repetitive_prompts(preset_path: Callable[[str], Path]) -> None:
    """B1: a real model and real kernels; one token 48 times, `abab...`, `aab aab...`, and no repeats."""
    prompts: Sequence[list[int]] = (
        [WORD] * 48,
        [WORD, OTHER] * 24,
        [WORD, WORD, OTHER, 28] * 12,
        list(range(1000, 1048)),
    )
    params = SamplingParams(max_tokens=32, ignore_eos=True)
    with LLM(str(preset_path("smollm2-135m-instruct")), drafter="suffix", **LIMITS) as llm:
        off = [llm.generate(prompt, params, speculation=OFF)[0] for prompt in prompts]
        llm.loaded.engine.clear_prefix_cache()
        alone = [llm.generate(prompt, params)[0] for prompt in prompts]
        together = llm.generate(prompts, params)
    assert [outcome(r) for r in alone] == [outcome(r) for r in off]
    assert [outcome(r) for r in together] == [outcome(r) for r in off]
    assert sum(r.speculation.num_accepted for r in alone) > 20
    assert sum(r.speculation.num_drafted - r.speculation.num_accepted for r in alone) > 0
