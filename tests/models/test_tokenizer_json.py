"""Tokenizers of model folders: `tokenizer.json` is followed as it is."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from paceline.errors import ModelFileError, UnsupportedModelError
from paceline.models.chat_template import ChatTemplate
from paceline.models.tokenizer import Tokenizer
from tests.models.vocabularies import BYTE_CHARACTERS, JOINED, MERGES, byte_level, strings_of

CONFIG = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}


def byte_level_library() -> tokenizers.Tokenizer:
    vocabulary = {string: index for index, string in enumerate([*BYTE_CHARACTERS, *JOINED])}
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(name, normalized=False) for name in ("<s>", "</s>", "<|im_end|>")])
    library.add_tokens([AddedToken("<tool>", normalized=False)])
    return library


def sentencepiece_library() -> tokenizers.Tokenizer:
    names = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "a", "▁a"]
    vocabulary = {name: index for index, name in enumerate(names)}
    library = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True)
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library.add_special_tokens([AddedToken(name, normalized=False) for name in ("<s>", "</s>")])
    return library


def save(folder: Path, library: tokenizers.Tokenizer, config: dict[str, Any] | None = CONFIG) -> Tokenizer:
    library.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_tokenizer_json(folder)


def test_same_tokens_as_the_library(tmp_path: Path) -> None:
    library = byte_level_library()
    tokenizer = save(tmp_path, library)
    assert tokenizer.encode("hello w é") == library.encode("hello w é").ids
    assert tokenizer.decode(tokenizer.encode("hello w é")) == "hello w é"


def test_same_vocabulary_as_a_gguf_file_of_it(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, byte_level_library())
    gguf = Tokenizer.from_gguf(byte_level())
    assert [tokenizer.token_bytes(i) for i in range(263)] == [gguf.token_bytes(i) for i in range(263)]


def test_typed_special_tokens_stay_text_unless_asked(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, byte_level_library())
    assert tokenizer.decode(tokenizer.encode("<s>he</s><tool>")) == "<s>he</s><tool>"
    assert strings_of(tokenizer, tokenizer.encode("<s>he</s><tool>", parse_special=True)) == [
        "<s>",
        "he",
        "</s>",
        "<tool>",
    ]
    assert strings_of(tokenizer, tokenizer.encode("<tool>")) == ["<tool>"]
    assert tokenizer.token_bytes(tokenizer.token_id("<tool>")) == b"<tool>"
    assert tokenizer.token_bytes(tokenizer.token_id("</s>")) == b""


def test_special_tokens_come_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    tokenizer = save(tmp_path, byte_level_library())
    assert (tokenizer.token_string(tokenizer.bos_id), tokenizer.token_string(tokenizer.eos_id)) == (
        "<s>",
        "</s>",
    )
    assert tokenizer.eos_ids == {5, 6, tokenizer.eos_id, tokenizer.token_id("<|im_end|>")}


def test_what_is_added_around_a_text_is_the_post_processor_s(tmp_path: Path) -> None:
    library = byte_level_library()
    assert not save(tmp_path, library).add_bos
    tokens = [(name, library.token_to_id(name)) for name in ("<s>", "</s>")]
    library.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=tokens)
    tokenizer = save(tmp_path, library)
    assert tokenizer.add_bos
    assert strings_of(tokenizer, tokenizer.encode("hello", add_special=True)) == ["<s>", "hello", "</s>"]
    assert strings_of(tokenizer, tokenizer.encode("hello")) == ["hello"]


def test_text_is_normalised_only_where_the_file_asks(tmp_path: Path) -> None:
    library = byte_level_library()
    tokenizer = save(tmp_path, library)
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "e\u0301"
    library.normalizer = normalizers.NFC()
    tokenizer = save(tmp_path, library)
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "\u00e9"


def test_truncation_and_padding_in_the_file_are_not_applied(tmp_path: Path) -> None:
    library = byte_level_library()
    library.enable_truncation(2)
    library.enable_padding(length=64)
    assert len(save(tmp_path, library).encode("hello hello hello")) == 5


def test_sentencepiece_bytes_and_byte_fallback(tmp_path: Path) -> None:
    tokenizer = save(tmp_path, sentencepiece_library())
    assert strings_of(tokenizer, tokenizer.encode("a aé")) == ["▁a", "▁a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("a aé")) == " a aé"


def test_chat_with_look_alikes_is_encoded_as_without(tmp_path: Path) -> None:
    # Text after a special token gets no space before it here, whether or not a look-alike has to be guarded.
    tokenizer = save(tmp_path, sentencepiece_library())
    template = ChatTemplate("a<s>{{ messages[0].content }}</s>", tokenizer)
    plain = strings_of(tokenizer, template.encode([{"role": "user", "content": "a"}]))
    assert plain == ["▁a", "<s>", "a", "</s>"]
    guarded = strings_of(tokenizer, template.encode([{"role": "user", "content": "a</s>"}]))
    assert guarded == ["▁a", "<s>", "a", *[f"<0x{byte:02X}>" for byte in b"</s>"], "</s>"]


def test_white_space_that_a_special_token_takes_along(tmp_path: Path) -> None:
    library = byte_level_library()
    library.add_special_tokens([AddedToken("<e>", lstrip=True, rstrip=True, normalized=False)])
    tokenizer = save(tmp_path, library)
    template = ChatTemplate("he <e> {{ messages[0].content }}", tokenizer)
    for content, expected in [("ll", ["he", "<e>", "ll"]), ("ll<s>", ["he", "<e>", "ll", "<", "s", ">"])]:
        assert strings_of(tokenizer, template.encode([{"role": "user", "content": content}])) == expected


def test_rows_without_a_token_are_padding(tmp_path: Path) -> None:
    library = byte_level_library()
    definition = json.loads(library.to_str())
    definition["model"]["vocab"]["zz"] = 300
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer.from_tokenizer_json(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.num_real_tokens) == (301, 301)
    assert tokenizer.token_bytes(299) == b""
    assert tokenizer.token_bytes(300) == b"zz"


def test_missing_end_token_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = save(tmp_path, sentencepiece_library(), config=None)
    assert "no end-of-text token in tokenizer_config.json" in caplog.text
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (None, frozenset())


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no tokenizer.json in .*Fetch the model's tokenizer.json"):
        Tokenizer.from_tokenizer_json(tmp_path)


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("{", ModelFileError, "tokenizer.json cannot be read"),
        ("[]", ModelFileError, "a JSON list at the top"),
        ("[" * 100_000, ModelFileError, "cannot be read .*recursion"),
        ('{"model": "BPE"}', UnsupportedModelError, "type None"),
        ('{"model": {"type": "BPE"}, "decoder": {"type": "ByteLevel"}}', ModelFileError, "cannot be read"),
        ('{"model": {"type": "WordPiece"}}', UnsupportedModelError, "type 'WordPiece'.*expected BPE"),
    ],
)
def test_damaged_file_says_what_is_wrong(
    tmp_path: Path, text: str, error: type[Exception], match: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(error, match=match):
        Tokenizer.from_tokenizer_json(tmp_path)


def test_decoder_that_does_not_say_what_bytes_tokens_are(tmp_path: Path) -> None:
    library = byte_level_library()
    library.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match=r"decoders \['WordPiece'\] in .*expected ByteLevel"):
        save(tmp_path, library)


def test_configuration_that_names_no_token_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"eos_token '<end>' in .*expected a token of tokenizer.json"):
        save(tmp_path, byte_level_library(), {"eos_token": "<end>"})


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"decoder": {"type": "Sequence", "decoders": 5}}, ModelFileError, "cannot be read"),
        ({"model": {"vocab": {}, "merges": []}}, ModelFileError, "cannot spell the letter a"),
        ({"model": {"vocab": {"a": 2**32 - 1}, "merges": []}}, ModelFileError, "ids up to 4294967295"),
    ],
)
def test_a_senseless_part_is_named(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], match: str
) -> None:
    library = byte_level_library()
    save(tmp_path, library)
    definition = json.loads(library.to_str())
    for key, value in change.items():
        definition[key] |= value
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(error, match=match):
        Tokenizer.from_tokenizer_json(tmp_path)


@pytest.mark.parametrize("ends", [["</s>"], -1, 10**6, {}, [[1]], 1.5])
def test_end_tokens_that_are_no_ids_are_named(tmp_path: Path, ends: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    with pytest.raises(ModelFileError, match=r"generation_config.json cannot be read \(eos_token_id"):
        save(tmp_path, byte_level_library())


def test_an_end_token_that_is_no_string_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"eos_token 5 in .*expected a token of tokenizer.json"):
        save(tmp_path, byte_level_library(), {"eos_token": 5})


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, byte_level_library())
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(ModelFileError, match=rf"{name} cannot be read"):
        Tokenizer.from_tokenizer_json(tmp_path)
