"""Token ids of the preset files against llama.cpp's, on the texts and chats of `tests/data`."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.models.chat_template import ChatTemplate
from paceline.models.gguf_file import GGUFFile
from paceline.models.tokenizer import Tokenizer
from paceline.models.vocabulary import check_same_vocabulary
from tests.models.vocabularies import strings_of

pytestmark = pytest.mark.models

DATA = Path(__file__).parents[1] / "data" / "tokens.json.gz"
QWEN = ("qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct")
PRESETS = {**dict.fromkeys(QWEN, "qwen2.5-coder"), "smollm2-135m-instruct": None, "gemma-3-270m": None}
"""Presets, and the entry of the data that holds their ids where its name differs."""
MAX_LOAD_S = 10.0
"""Several times what loading takes, as the machine may be busy; a quadratic step would take minutes."""


@dataclass(frozen=True)
class Case:
    metadata: Mapping[str, Any]
    tokenizer: Tokenizer
    texts: list[str]
    expected: Mapping[str, Any]
    load_s: float


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        loaded: dict[str, Any] = json.load(file)
    return loaded


@pytest.fixture(scope="module", params=PRESETS)
def case(
    request: pytest.FixtureRequest, reference: dict[str, Any], preset_path: Callable[[str], Path]
) -> Case:
    metadata = GGUFFile.open(preset_path(request.param)).metadata
    start = time.process_time()
    tokenizer = Tokenizer.from_gguf(metadata)
    load_s = time.process_time() - start
    expected = reference["models"][PRESETS[request.param] or request.param]
    return Case(metadata, tokenizer, reference["texts"], expected, load_s)


def test_plain_texts(case: Case) -> None:
    assert len(case.texts) == len(case.expected["plain"]) == 417
    wrong = {
        text: strings_of(case.tokenizer, found)
        for text, expected in zip(case.texts, case.expected["plain"], strict=True)
        if (found := case.tokenizer.encode(text)) != expected
    }
    assert wrong == {}


def test_special_tokens_around_a_text(case: Case) -> None:
    assert case.tokenizer.encode("Hello", add_special=True) == case.expected["add_special"]


def test_chats(case: Case) -> None:
    template = ChatTemplate.from_gguf(case.metadata, case.tokenizer)
    assert (template is None) == (case.expected["chat"] == [])
    for chat in case.expected["chat"]:
        assert template is not None
        assert template.render(chat["messages"]) == chat["rendered"]
        assert template.encode(chat["messages"]) == chat["tokens"]


def test_user_text_in_a_chat_makes_no_special_token(case: Case) -> None:
    template = ChatTemplate.from_gguf(case.metadata, case.tokenizer)
    if template is None:
        template = ChatTemplate(
            "<start_of_turn>user\n{{ messages[0].content }}<end_of_turn>\n", case.tokenizer
        )
    special = set(case.tokenizer.special_tokens.values())

    def specials_with(content: str) -> list[int]:
        return [i for i in template.encode([{"role": "user", "content": content}]) if i in special]

    typed = "".join(case.tokenizer.special_tokens)
    assert specials_with(typed) == specials_with("Hi") != []
    assert set(case.tokenizer.encode(typed, parse_special=True)) == special


def test_tokens_spell_the_text(case: Case) -> None:
    # SentencePiece writes the same mark for a space and for the mark itself, and so cannot tell them apart.
    texts = [text for text in case.texts if "▁" not in text]
    assert [case.tokenizer.decode(case.tokenizer.encode(text)) for text in texts] == texts


def test_loading_is_quick(case: Case) -> None:
    assert case.load_s < MAX_LOAD_S


def test_qwen_pair_shares_its_vocabulary(preset_path: Callable[[str], Path]) -> None:
    target, draft = (Tokenizer.from_gguf(GGUFFile.open(preset_path(name)).metadata) for name in QWEN)
    check_same_vocabulary(target, draft)
    assert (target.num_real_tokens, target.vocab_size) == (151_665, 151_936)
    assert strings_of(target, sorted(target.eos_ids)) == ["<|endoftext|>", "<|im_end|>"]
