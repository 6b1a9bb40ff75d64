"""Reading GGUF: values, shapes, and every way in which a file can be wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from paceline.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from paceline.models.gguf_file import GGUFFile
from tests.tiny_models import TinyModel


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def header(num_tensors: int = 0, num_pairs: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_pairs)


def pair(key: str, value_type: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", value_type) + value


def tensor(name: str, shape: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + sizes + struct.pack("<IQ", type_id, offset)


def read(tmp_path: Path, data: bytes) -> GGUFFile:
    path = tmp_path / "made.gguf"
    path.write_bytes(data)
    return GGUFFile.open(path)


def test_metadata_are_plain_python_values(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "all.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e300)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve 😀")
    writer.add_array("strings", ["a", "", "ü"])
    writer.add_array("numbers", [1.5, -2.5])
    writer.add_array("flags", [True, False])
    writer.add_array("nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = GGUFFile.open(tmp_path / "all.gguf").metadata
    assert metadata == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -100,
        "u16": 60_000,
        "i16": -30_000,
        "i32": -2_000_000_000,
        "u64": 2**63,
        "i64": -(2**62),
        "f32": 0.5,
        "f64": 1e300,
        "yes": True,
        "text": "naïve 😀",
        "strings": ["a", "", "ü"],
        "numbers": [1.5, -2.5],
        "flags": [True, False],
        "nested": [[1, 2], [3]],
    }
    assert metadata["yes"] is True
    assert type(metadata["u8"]) is int
    assert type(metadata["numbers"][0]) is float


def test_tensors_are_row_major_views(tmp_path: Path) -> None:
    model = TinyModel("llama", tensor_type="Q8_0")
    file = GGUFFile.open(model.write(tmp_path / "tiny.gguf"))
    expected = model.tensors()
    assert file.tensors.keys() == expected.keys()
    gate = file.tensors["blk.0.ffn_gate.weight"]
    assert (gate.shape, gate.type) == ((96, 64), "Q8_0")
    out = np.empty(gate.shape, np.float32)
    gate.read(out)
    np.testing.assert_allclose(out, expected["blk.0.ffn_gate.weight"], atol=0.01)
    np.testing.assert_array_equal(gate.read_rows([5, 0, 95]), out[[5, 0, 95]])
    with pytest.raises(IndexError):
        gate.read_rows([96])
    norm = file.tensors["output_norm.weight"]
    assert norm.type == "F32"
    np.testing.assert_array_equal(norm.data.view(np.float32), expected["output_norm.weight"])


def test_version_2_and_an_alignment_are_read(tmp_path: Path) -> None:
    head = header(2, 1, version=2) + pair("general.alignment", 4, struct.pack("<I", 8))
    head += tensor("a", [3]) + tensor("b", [2], offset=16)
    head += b"\0" * (-len(head) % 8)
    file = read(tmp_path, head + struct.pack("<6f", 1, 2, 3, 0, 4, 5))
    assert file.tensors["a"].data.view(np.float32).tolist() == [1, 2, 3]
    assert file.tensors["b"].data.view(np.float32).tolist() == [4, 5]


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """Cut a whole file at many places: always the typed error, never a crash or a wrong reading."""
    data = TinyModel(num_layers=1, chat_template=None).write(tmp_path / "tiny.gguf").read_bytes()
    head = len(data) - sum(4 * tensor.size for tensor in TinyModel(num_layers=1).tensors().values())
    lengths = [*range(64), *range(64, head, 97), head + 1, len(data) // 2, len(data) - 1]
    for length in lengths:
        with pytest.raises(ModelFileError):
            read(tmp_path, data[:length])


DAMAGED = {
    "wrong magic": (header(magic=b"GGML"), r"first bytes b'GGML'; expected b'GGUF'. Give a GGUF file"),
    "empty": (b"", r"first bytes b''; expected b'GGUF'"),
    "version 1": (header(version=1), "GGUF version 1; expected version 2 or 3, little-endian"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GGUF version 50331648; expected version 2 or 3"),
    "absurd tensor count": (header(2**60), "1152921504606846976 tensors announced"),
    "absurd pair count": (header(0, 2**63), "9223372036854775808 metadata pairs announced"),
    "key runs off": (header(0, 1) + struct.pack("<Q", 2**40) + b"k" * 20, "a metadata key reaches to byte"),
    "string runs off": (
        header(0, 1) + pair("name", 8, struct.pack("<Q", 999) + b"abc"),
        "name reaches to byte",
    ),
    "value type": (
        header(0, 1) + pair("odd", 13, b"\0" * 8),
        "'odd' of value type 13; expected a type from 0",
    ),
    "item type": (
        header(0, 1) + pair("odd", 9, struct.pack("<IQ", 77, 0)),
        "'odd' of item type 77; expected a type from 0",
    ),
    "array runs off": (
        header(0, 1) + pair("list", 9, struct.pack("<IQ", 6, 2**50)),
        "metadata 'list' reaches to byte",
    ),
    "absurd string count": (
        header(0, 1) + pair("list", 9, struct.pack("<IQ", 8, 2**50)),
        "1125899906842624 strings in 'list' announced",
    ),
    "string in array runs off": (
        header(0, 1) + pair("list", 9, struct.pack("<IQ", 8, 2) + string("a") + struct.pack("<Q", 50)),
        "a string in 'list' reaches to byte",
    ),
    "array ends within a length": (
        header(0, 1) + pair("list", 9, struct.pack("<IQ", 8, 2) + string("abcdefghij") + b"\0\0\0"),
        "a string in 'list' reaches to byte",
    ),
    "deep nesting": (
        header(0, 1) + pair("list", 9, struct.pack("<IQ", 9, 1) * 9 + b"\0" * 64),
        "'list' nested over 4 deep",
    ),
    "not UTF-8": (header(0, 1) + pair("name", 8, string(b"\xff\xfe")), "name is not UTF-8"),
    "array not UTF-8": (
        header(0, 1) + pair("list", 9, struct.pack("<IQ", 8, 1) + string(b"\xff")),
        "a string in 'list' is not UTF-8",
    ),
    "key twice": (header(0, 2) + pair("k", 0, b"\1") * 2, "metadata key 'k' twice"),
    "tensor twice": (
        header(2) + tensor("w", [1]) * 2 + b"\0" * 99,
        "tensor 'w' twice; expected each tensor once",
    ),
    "dimensions": (
        header(1) + tensor("w", [1] * 5) + b"\0" * 99,
        "tensor 'w' of 5 dimensions; expected at most 4",
    ),
    "no dimension": (header(1) + tensor("w", []) + b"\0" * 99, r"tensor 'w' of shape \[\]"),
    "empty dimension": (header(1) + tensor("w", [0]) + b"\0" * 99, r"tensor 'w' of shape \[0\]"),
    "block": (
        header(1) + tensor("w", [33, 2], 8) + b"\0" * 999,
        r"shape \[2, 33\]; expected rows in blocks of 32",
    ),
    "offset": (
        header(1) + tensor("w", [1], offset=4) + b"\0" * 99,
        "tensor 'w' at offset 4; expected a multiple of 32",
    ),
    "data beyond the end": (header(1) + tensor("w", [100]) + b"\0" * 99, "tensor 'w' reaches to byte"),
    "overflowing shape": (
        header(1) + tensor("w", [2**62, 2**62]) + b"\0" * 99,
        "tensor 'w' reaches to byte",
    ),
    "alignment": (
        header(0, 1) + pair("general.alignment", 4, struct.pack("<I", 24)),
        "alignment 24; expected a power of two",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    data, message = DAMAGED[name]
    with pytest.raises(ModelFileError, match=message) as caught:
        read(tmp_path, data)
    assert "made.gguf" in str(caught.value)


@pytest.mark.parametrize(("type_id", "shown"), [(16, "IQ2_XXS"), (23, "IQ4_XS"), (999, "number 999")])
def test_an_unknown_tensor_type_names_tensor_type_and_choices(
    type_id: int, shown: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read(tmp_path, header(1) + tensor("blk.3.odd", [256], type_id) + b"\0" * 999)
    assert f"tensor 'blk.3.odd' of type {shown} in made.gguf" in str(caught.value)
    assert "Q5_0, Q5_1, IQ4_NL, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K" in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"none\.gguf cannot be read \(No such file"):
        GGUFFile.open(tmp_path / "none.gguf")
    with pytest.raises(ModelNotFoundError, match="Is a directory"):
        GGUFFile.open(tmp_path)


def test_random_damage_never_gets_past_the_typed_errors(tmp_path: Path) -> None:
    """Flip bytes of the head at random: read well, or refuse with a model error."""
    data = TinyModel(num_layers=1).write(tmp_path / "tiny.gguf").read_bytes()
    rng = np.random.default_rng(0)
    num_refused = 0
    for _ in range(300):
        broken = bytearray(data)
        for position in rng.integers(0, 9_000, 3):
            broken[position] = rng.integers(0, 256)
        try:
            read(tmp_path, bytes(broken))
        except (ModelFileError, UnsupportedModelError):
            num_refused += 1
    assert num_refused > 100
