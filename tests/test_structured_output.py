"""Answers of a given form from real vocabularies and a real model: they parse, and drafts change nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.drafters.model import ModelDrafter
from paceline.llm import LLM
from paceline.models.gguf_file import GGUFFile
from paceline.models.tokenizer import Tokenizer
from paceline.parameters import StructuredOutput
from paceline.records import FinishReason, GenerationResult, SamplingParams, SpeculationParams
from paceline.sampling.grammar import GrammarCompiler
from tests.test_lossless import SpoiledModel

pytestmark = pytest.mark.models
PresetPath = Callable[[str], Path]
OFF = SpeculationParams(enabled=False)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "café", "😀"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        set(value) == {"name", "age", "likes"}
        and len(value["name"]) <= 12
        and 0 <= value["age"] <= 120
        and len(value["likes"]) <= 2
        and set(value["likes"]) <= {"tea", "café", "😀"}
    )


@pytest.fixture(
    scope="module", params=["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "gemma-3-270m"]
)
def tokenizer(request: pytest.FixtureRequest, preset_path: PresetPath) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile.open(preset_path(request.param)).metadata)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.token_bytes, tokenizer.num_real_tokens)


TEXTS = ['{"name": "Zoë", "age": 41, "likes": ["café", "😀"]}', '{"name":"\\"\\\\","age":0,"likes":[]}']


@pytest.mark.parametrize("text", TEXTS)
def test_a_tokenised_text_of_the_form_is_allowed_token_by_token(
    tokenizer: Tokenizer, compiler: GrammarCompiler, text: str
) -> None:
    assert is_person(text)
    state = compiler.compile(StructuredOutput(json_schema=PERSON)).start(tokenizer.eos_ids)
    ends = sorted(tokenizer.eos_ids)
    token_ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, token_ids)) == text.encode()
    for token_id in token_ids:
        allowed = state.allowed()
        assert allowed[token_id], tokenizer.token_string(token_id)
        assert not allowed[ends].any()
        state.append([token_id])
    assert state.is_complete
    assert np.flatnonzero(state.allowed()).tolist() == ends


@pytest.mark.parametrize("seed", range(3))
def test_any_walk_along_allowed_tokens_gives_a_text_of_the_form(
    tokenizer: Tokenizer, compiler: GrammarCompiler, seed: int
) -> None:
    """Short tokens are preferred, so that walks come to an end; what is taken is random all the same."""
    rng = np.random.default_rng(seed)
    state = compiler.compile(StructuredOutput(json_schema=PERSON)).start(tokenizer.eos_ids)
    data = b""
    for _ in range(400):
        if state.is_complete:
            break
        allowed = np.flatnonzero(state.allowed())
        some = rng.choice(allowed, size=min(8, len(allowed)), replace=False).tolist()
        visible = [i for i in some if tokenizer.token_bytes(i).strip()]
        token_id = min(visible or some, key=lambda i: len(tokenizer.token_bytes(i)))
        data += tokenizer.token_bytes(token_id)
        state.append([token_id])
    assert is_person(data.decode())


def test_control_and_padding_tokens_never_come(tokenizer: Tokenizer, compiler: GrammarCompiler) -> None:
    allowed = compiler.compile(StructuredOutput(regex="(.|\n)*")).start(()).allowed()
    assert len(allowed) == tokenizer.num_real_tokens
    silent = [i for i in range(tokenizer.num_real_tokens) if not tokenizer.token_bytes(i)]
    assert silent
    assert not allowed[silent].any()


@pytest.fixture(scope="module")
def llm(preset_path: PresetPath) -> Iterator[LLM]:
    """SmolLM2 with a spoiled copy of itself as the draft model."""
    path = str(preset_path("smollm2-135m-instruct"))
    with LLM(path, path, context_length=256, kv_memory="256MiB") as llm:
        drafter = llm.loaded.engine.drafters["model"]
        assert isinstance(drafter, ModelDrafter)
        drafter._model = SpoiledModel(drafter._model)  # type: ignore[assignment]
        yield llm


FEELINGS = ("positive", "negative", "neutral")
FORMS: list[tuple[dict[str, Any], Callable[[str], bool], str]] = [
    ({"json_schema": PERSON}, is_person, "A person as JSON: name, age and likes."),
    (
        {"regex": r"\d{4}-\d\d-\d\d( and \d{4}-\d\d-\d\d)*\."},
        lambda text: bool(re.fullmatch(r"\d{4}-\d\d-\d\d( and \d{4}-\d\d-\d\d)*\.", text)),
        "Name two dates.",
    ),
    (
        {"choice": ("positive", "negative", "neutral")},
        {"positive", "negative", "neutral"}.__contains__,
        "Good!",
    ),
]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("form", "fits", "prompt"), FORMS)
def test_answers_have_their_form_with_and_without_drafts(
    llm: LLM, form: dict[str, Any], fits: Callable[[str], bool], prompt: str, temperature: float
) -> None:
    params = SamplingParams(
        structured_output=StructuredOutput(**form),
        temperature=temperature,
        seed=1,
        n=2,
        max_tokens=60,
        logprobs=1,
    )
    messages = [{"role": "user", "content": prompt}]

    def answers(speculation: SpeculationParams) -> list[GenerationResult]:
        return llm.chat(messages, params, speculation=speculation)

    off = answers(OFF)
    num_drafted = num_accepted = 0
    for drafter, k in (("model", 5), ("suffix", 3)):
        on = answers(SpeculationParams(drafter=drafter, draft_length=k))
        for a, b in zip(off, on, strict=True):
            assert (a.token_ids, a.text, a.finish_reason, a.logprobs) == (
                b.token_ids,
                b.text,
                b.finish_reason,
                b.logprobs,
            )
            assert b.speculation.fallback is None
        num_drafted += sum(r.speculation.num_drafted for r in on)
        num_accepted += sum(r.speculation.num_accepted for r in on)
    finished = [r.text for r in off if r.finish_reason is FinishReason.STOP]
    assert all(map(fits, finished))
    assert finished or "json_schema" not in form
    # One of a few words is over after a token or two, which a draft may miss.
    assert (0 if "choice" in form else 1) <= num_accepted <= num_drafted
    assert num_accepted < num_drafted or "choice" in form
    assert llm.loaded.engine.pool.num_used == 0
