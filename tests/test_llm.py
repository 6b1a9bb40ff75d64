"""The Python API on tiny models of real files: tokenizer, template, decoder, drafts and all."""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams, SpeculationParams
from paceline.errors import (
    CapacityError,
    ChatTemplateError,
    ConfigError,
    EmptyPromptError,
    InvalidParameterError,
    ModelNotFoundError,
    PromptTooLongError,
    VocabularyMismatchError,
)
from paceline.parameters import StructuredOutput
from paceline.records import FinishReason
from paceline.sampling.noise import derive_seed
from tests.tiny_models import TinyModel

OFF = SpeculationParams(enabled=False)
HELLO = [{"role": "user", "content": "the def return"}]
LIMITS = {"context_length": 256, "kv_memory": "64MiB"}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(TinyModel("qwen2").write(tmp_path_factory.mktemp("target") / "target.gguf"))


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The target's embedding, head and first layer: right about some tokens, wrong about others."""
    return str(TinyModel("qwen2", num_layers=1).write(tmp_path_factory.mktemp("draft") / "draft.gguf"))


@pytest.fixture(scope="module")
def llm(target: str, draft: str) -> Iterator[LLM]:
    with LLM(target, draft, **LIMITS) as llm:
        yield llm


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["model", "suffix"])
@pytest.mark.parametrize("k", [1, 3, 5, 8])
def test_speculation_never_changes_an_answer(llm: LLM, drafter: str, k: int, temperature: float) -> None:
    prompts = ["the def", "return in the", "to", "er on to he th an re de", "the the the the the"]
    params = SamplingParams(temperature=temperature, seed=11, max_tokens=40, ignore_eos=True, logprobs=2)
    on = SpeculationParams(drafter=drafter, draft_length=k)
    alone = [llm.generate(prompt, params, speculation=OFF)[0] for prompt in prompts]
    together = llm.generate(prompts, params, speculation=on)
    for off, result in zip(alone, together, strict=True):
        assert result.token_ids == off.token_ids
        assert result.text == off.text
        assert result.logprobs == off.logprobs
        assert result.usage == off.usage
        assert off.speculation.num_drafted == 0
    drafted = sum(r.speculation.num_drafted for r in together)
    accepted = sum(r.speculation.num_accepted for r in together)
    if drafter == "model":
        assert 0 < accepted < drafted


def test_chat_streams_what_it_answers(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=3)
    (answer,) = llm.chat(HELLO, params)
    chunks = list(llm.stream(HELLO, params))
    assert "".join(c.text for c in chunks) == answer.text
    assert tuple(i for c in chunks for i in c.token_ids) == answer.token_ids
    assert chunks[-1].result is not None
    assert chunks[-1].result.token_ids == answer.token_ids
    both = llm.chat([HELLO, HELLO], params)
    assert [r.token_ids for r in both] == [answer.token_ids] * 2


@pytest.mark.parametrize("speculation", [None, OFF])
def test_each_prompt_has_n_answers(llm: LLM, speculation: SpeculationParams | None) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.2, n=3, seed=8, ignore_eos=True)
    results = llm.generate(["the def", "return"], params, speculation=speculation)
    assert [r.index for r in results] == [0, 1, 2] * 2
    assert [r.seed for r in results[:3]] == [derive_seed(8, j) for j in range(3)]
    for result in results[:3]:
        alone = params.model_copy(update={"n": 1, "seed": result.seed})
        assert llm.generate("the def", alone, speculation=OFF)[0].token_ids == result.token_ids
    chunks = list(llm.stream("the def", params))
    assert {c.request_id for c in chunks} == {chunks[0].request_id}
    texts = ["".join(c.text for c in chunks if c.index == j) for j in range(3)]
    assert texts == [r.text for r in results[:3]]


@pytest.mark.parametrize("drafter", ["model", "suffix"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_has_the_form_that_was_asked_for(llm: LLM, drafter: str, temperature: float) -> None:
    form = StructuredOutput(regex="(the|def) [a-e]{2,6}[0-9]")
    params = SamplingParams(structured_output=form, temperature=temperature, seed=4, max_tokens=40)
    prompts = ["the def", "return in the"]
    off = llm.generate(prompts, params, speculation=OFF)
    on = llm.generate(prompts, params, speculation=SpeculationParams(drafter=drafter))
    assert [(r.token_ids, r.text) for r in on] == [(r.token_ids, r.text) for r in off]
    for result in off:
        assert re.fullmatch(form.regex or "", result.text)
        assert result.finish_reason is FinishReason.STOP


def test_log_probabilities_of_a_prompt_do_not_hang_on_speculation(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, prompt_logprobs=2)
    (on,) = llm.generate("the def return in the", params)
    (off,) = llm.generate("the def return in the", params, speculation=OFF)
    assert on.prompt_logprobs == off.prompt_logprobs
    assert off.prompt_logprobs is not None
    assert len(off.prompt_logprobs) == off.usage.prompt_tokens
    assert off.prompt_logprobs[0] is None


def test_two_streams_may_be_read_in_turn(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = [r.token_ids for r in llm.generate(["the def", "return"], params)]
    first, second = llm.stream("the def", params), llm.stream("return", params)
    read: list[list[int]] = [[], []]
    for a, b in zip(first, second, strict=False):
        read[0] += a.token_ids
        read[1] += b.token_ids
    read[0] += [i for c in first for i in c.token_ids]
    read[1] += [i for c in second for i in c.token_ids]
    assert [tuple(ids) for ids in read] == expected


def test_leaving_a_stream_early_frees_its_memory(llm: LLM) -> None:
    engine = llm.loaded.engine
    for chunk in llm.stream("the def", SamplingParams(max_tokens=100, ignore_eos=True)):
        if chunk.token_ids:
            break
    del chunk
    assert engine.pool.num_used == 0
    assert llm.generate("to", SamplingParams(max_tokens=2))[0].usage.completion_tokens > 0


def test_a_stream_that_is_never_read_leaves_nothing_behind(llm: LLM) -> None:
    engine = llm.loaded.engine
    stream = llm.stream("the def", SamplingParams(max_tokens=100))
    assert engine.has_work
    del stream
    assert not engine.has_work


def test_an_abandoned_id_may_be_used_again(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    dropped = llm.chunks(llm.submit([1, 2], params, request_id="again"))
    next(dropped)
    del dropped
    *_, last = llm.chunks(llm.submit([1, 2], params, request_id="again"))
    assert last.result is not None
    assert last.result.finish_reason is FinishReason.LENGTH


def test_chunks_are_read_in_one_place(llm: LLM) -> None:
    with pytest.raises(InvalidParameterError, match="'nobody', of which no chunks wait"):
        llm.chunks("nobody")
    stream = llm.stream("the def", SamplingParams(max_tokens=3))
    assert [c for c in llm.run() if c.is_last]
    with pytest.raises(InvalidParameterError, match="no chunks wait"):
        next(stream)


def test_a_request_that_names_no_drafter_takes_the_engines(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    (result,) = llm.generate("the def", params, speculation=SpeculationParams(draft_length=2))
    assert result.speculation.drafter == "model"
    assert result.speculation.num_drafted > 0


def test_a_request_without_a_seed_returns_the_one_it_drew(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=1.5, ignore_eos=True)
    first, second = llm.generate("the", params)[0], llm.generate("the", params)[0]
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    again = llm.generate("the", params.model_copy(update={"seed": first.seed}))[0]
    assert again.token_ids == first.token_ids


def test_stop_strings_cut_text_ids_and_usage_alike(llm: LLM) -> None:
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    (whole,) = llm.generate("the def", params, speculation=OFF)
    stop = whole.text[10:13]
    begin = whole.text.index(stop)
    for speculation in (OFF, SpeculationParams(drafter="model", draft_length=6)):
        (cut,) = llm.generate("the def", params.model_copy(update={"stop": (stop,)}), speculation=speculation)
        assert cut.text == whole.text[:begin]
        assert cut.finish_reason is FinishReason.STOP
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert cut.usage.completion_tokens == len(cut.token_ids)


def test_minimum_length_and_end_tokens(llm: LLM) -> None:
    (free,) = llm.generate("the def", SamplingParams(max_tokens=30, ignore_eos=True), speculation=OFF)
    end = free.token_ids[4]
    params = SamplingParams(max_tokens=30, ignore_eos=True, stop_token_ids=(end,))
    (short,) = llm.generate("the def", params)
    assert short.token_ids[-1] == end
    assert short.finish_reason is FinishReason.STOP
    at_least = params.model_copy(update={"min_tokens": 12})
    for speculation in (OFF, SpeculationParams(drafter="model", draft_length=5)):
        (long,) = llm.generate("the def", at_least, speculation=speculation)
        assert len(long.token_ids) >= 12
        assert end not in long.token_ids[:12]


def test_padding_rows_are_never_sampled(llm: LLM) -> None:
    num_real = llm.loaded.tokenizer.num_real_tokens
    (result,) = llm.generate("the", SamplingParams(max_tokens=200, temperature=50.0, seed=1, ignore_eos=True))
    assert max(result.token_ids) < num_real < llm.loaded.engine._model.vocab_size


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ("", EmptyPromptError, "zero tokens"),
        ([], EmptyPromptError, "empty list of prompts"),
        ([""], EmptyPromptError, "zero tokens"),
        ([[]], EmptyPromptError, "zero tokens"),
        ([1] * 256, PromptTooLongError, "at most 255"),
        ([10**6], InvalidParameterError, "prompt token id 1000000"),
        ([None], InvalidParameterError, "NoneType"),
        ([1, "the"], InvalidParameterError, "type int"),
        ([["the", "def"]], InvalidParameterError, "type list"),
        ([[1.5]], InvalidParameterError, "type list"),
        (b"the", InvalidParameterError, "type bytes"),
        (5, InvalidParameterError, "type int"),
        (None, InvalidParameterError, "type NoneType"),
    ],
)
def test_bad_prompts_are_refused(llm: LLM, prompt: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        llm.generate(prompt)  # type: ignore[arg-type]
    assert not llm.loaded.engine.has_work


@pytest.mark.parametrize("prompt", [5, None, [1.5], ["the"], b"the"])
def test_bad_prompts_of_a_stream_are_refused_at_the_call(llm: LLM, prompt: object) -> None:
    with pytest.raises(InvalidParameterError, match="expected text or a list of token ids"):
        llm.stream(prompt)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="expected text or a list of token ids"):
        llm.submit([[prompt]])  # type: ignore[list-item]


@pytest.mark.parametrize("messages", [[], "the", 5, None, [[]], ["the"], [5], {"role": "user"}])
def test_what_is_no_conversation_is_refused(llm: LLM, messages: object) -> None:
    with pytest.raises(InvalidParameterError, match="messages"):
        llm.chat(messages)  # type: ignore[arg-type]
    assert not llm.loaded.engine.has_work


def test_parameters_of_another_type_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidParameterError, match="params of type dict; expected a SamplingParams"):
        llm.generate("the", {"max_tokens": 3})  # type: ignore[arg-type]


def test_one_bad_prompt_refuses_the_batch(llm: LLM) -> None:
    with pytest.raises(EmptyPromptError):
        llm.generate(["the", ""])
    assert not llm.loaded.engine.has_work
    assert llm.generate("the", SamplingParams(max_tokens=1))[0].usage.completion_tokens == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperatur": 1.0}, "unknown parameter 'temperatur'"),
        ({"temperature": -1.0}, "temperature = -1.0; expected .*greater than or equal to 0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p = 0.0"),
        ({"top_p": 1.5}, "top_p = 1.5"),
        ({"top_k": -1}, "top_k = -1"),
        ({"min_p": 2}, "min_p = 2"),
        ({"repetition_penalty": 0}, "repetition_penalty = 0"),
        ({"presence_penalty": 3}, "presence_penalty = 3"),
        ({"logit_bias": {1: 200.0}}, "-100 to 100"),
        ({"stop": ("",)}, "at least one character"),
        ({"max_tokens": 0}, "max_tokens = 0"),
        ({"max_tokens": 2, "min_tokens": 3}, r"min_tokens \(3\) at most max_tokens \(2\)"),
        ({"logprobs": 21}, "logprobs = 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs = -1"),
        ({"n": 0}, "n = 0"),
        ({"structured_output": {"regex": "a", "json_object": True}}, "exactly one of"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_parameters_out_of_range_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        SamplingParams(**values)


def test_drafting_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="draft_length = 65"):
        SpeculationParams(draft_length=65)
    with pytest.raises(InvalidParameterError, match="verification"):
        SpeculationParams(verification="hopeful")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"drafft": "x"}, ConfigError, "unknown setting 'drafft'.*Write 'draft' if you meant that"),
        ({"drafter": "model"}, ConfigError, "without a draft model"),
        ({"draft_length": 99}, ConfigError, "draft_length = 99"),
        ({"device": "tpu"}, ConfigError, "device = 'tpu'"),
        ({"kv_memory": "lots"}, ConfigError, "kv_memory = 'lots'; expected a size such as"),
        ({"kv_memory": "9" * 400, "context_length": 4097}, ConfigError, "context_length = 4097"),
        ({"kv_memory": 1000, "context_length": 256}, CapacityError, "1,000 bytes for the KV cache"),
        ({"draft": "no-such-model"}, ModelNotFoundError, "no-such-model"),
    ],
)
def test_bad_settings_are_refused(
    target: str, settings: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LLM(target, **settings)


def test_a_draft_with_other_words_is_refused(target: str, tmp_path: Path) -> None:
    """B25: at load, naming the first id that differs."""
    other = TinyModel("qwen2", num_layers=1)
    tokens = list(other.vocabulary()["tokenizer.ggml.tokens"])
    tokens[5], tokens[6] = tokens[6], tokens[5]
    swapped = TinyModel("qwen2", num_layers=1, metadata={"tokenizer.ggml.tokens": tokens})
    with pytest.raises(VocabularyMismatchError, match="token 5 is"):
        LLM(target, str(swapped.write(tmp_path / "swapped.gguf")), **LIMITS)


def test_padding_rows_may_differ_in_number(target: str, tmp_path: Path) -> None:
    padded = TinyModel("qwen2", num_layers=1, num_padding_tokens=40).write(tmp_path / "padded.gguf")
    params = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.7, seed=5)
    with LLM(target, str(padded), **LIMITS) as llm:
        (on,) = llm.generate("the def", params)
        (off,) = llm.generate("the def", params, speculation=OFF)
    assert on.token_ids == off.token_ids
    assert on.speculation.num_drafted > 0


def test_a_draft_that_is_not_used_is_said(target: str, draft: str, caplog: pytest.LogCaptureFixture) -> None:
    """B42: loaded or not, a draft model that never drafts is worth a word."""
    with caplog.at_level(logging.WARNING), LLM(target, draft, drafter="suffix", **LIMITS) as llm:
        assert list(llm.loaded.engine.drafters) == ["suffix"]
    assert "is not loaded: the drafter is suffix" in caplog.text


def test_without_a_chat_template_a_chat_is_refused(tmp_path: Path) -> None:
    path = TinyModel("llama", chat_template=None).write(tmp_path / "plain.gguf")
    with LLM(str(path), **LIMITS) as llm:
        with pytest.raises(ChatTemplateError, match="plain prompt"):
            llm.chat(HELLO)
        assert llm.generate("the", SamplingParams(max_tokens=3))[0].usage.completion_tokens > 0


def test_a_closed_llm_says_so(target: str) -> None:
    llm = LLM(target, **LIMITS)
    llm.close()
    with pytest.raises(ConfigError, match="closed"):
        llm.generate("the")


def test_a_closed_llm_holds_nothing_though_it_is_kept(target: str, draft: str) -> None:
    llm = LLM(target, draft, **LIMITS)
    (result,) = llm.generate("the", SamplingParams(max_tokens=3))
    alive = [weakref.ref(llm.loaded.engine), weakref.ref(llm.loaded.engine._model)]
    llm.close()
    assert [reference() for reference in alive] == [None, None]
    assert result.usage.completion_tokens == 3


def test_context_ends_an_answer_at_its_last_place(target: str, draft: str) -> None:
    with LLM(target, draft, context_length=64, draft_length=16, kv_memory="64MiB") as llm:
        prompts = [[5] * n for n in range(48, 64)]
        on = llm.generate(prompts, SamplingParams(ignore_eos=True))
        off = llm.generate(prompts, SamplingParams(ignore_eos=True), speculation=OFF)
    assert [r.token_ids for r in on] == [r.token_ids for r in off]
    assert [len(r.token_ids) for r in on] == [64 - len(p) for p in prompts]
    assert {r.finish_reason for r in on} == {FinishReason.LENGTH}
