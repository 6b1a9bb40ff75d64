"""Reading GGUF files: memory-mapped, bounds-checked, fast on large vocabularies.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
A file comes from anywhere, so every length in it is checked against the bytes there are before it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from paceline.errors import ModelError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from paceline.kernels.dequantize import SUPPORTED_TYPES
from paceline.models.tensors import TensorInfo

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
_MIN_TENSOR_INFO = 8 + 4 + 4 + 8  # bytes of an entry with an empty name and no dimensions
_MIN_KEY_VALUE = 8 + 4 + 1

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A GGUF file: metadata as plain Python values, tensors as views of the memory-mapped file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, path: Path | str) -> GGUFFile:
        """Map and parse a file.

        Raises:
            ModelNotFoundError: there is no such file.
            ModelFileError: the file is not GGUF, damaged, or cut short.
            UnsupportedModelError: it holds a tensor type that is not supported.
        """
        path = Path(path)
        try:
            mapped = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        except OSError as error:
            raise ModelNotFoundError(
                given=f"{path} cannot be read ({error.strerror})",
                expected="a GGUF file",
                remedy="Check the path, or pull a preset with `paceline models pull NAME`",
            ) from None
        return _Parser(path, np.asarray(mapped)).parse()


class _Parser:
    """A position in the file, and readers that move it and never pass the end."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self._path = path
        self._data = data
        self._view = memoryview(data.data)
        self._size = data.size
        self._at = 0

    def parse(self) -> GGUFFile:
        num_tensors, num_pairs = self._read_header()
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._read_string("a metadata key")
            if key in metadata:
                raise self._damaged(f"metadata key {key!r} twice", "each key once")
            metadata[key] = self._read_value(self._scalar("I"), key, depth=0)
        entries = [self._read_tensor_entry() for _ in range(num_tensors)]
        return GGUFFile(self._path, metadata, self._locate(entries, self._alignment(metadata)))

    def _read_header(self) -> tuple[int, int]:
        magic = bytes(self._view[:4])
        if magic != MAGIC:
            raise self._damaged(
                f"first bytes {magic!r}", f"{MAGIC!r}", "Give a GGUF file, or a folder with safetensors files"
            )
        self._at = 4
        version = self._scalar("I")
        if version not in SUPPORTED_VERSIONS:
            known = " or ".join(map(str, SUPPORTED_VERSIONS))
            raise self._damaged(
                f"GGUF version {version}", f"version {known}, little-endian", "Convert the model anew"
            )
        num_tensors, num_pairs = self._scalar("Q"), self._scalar("Q")
        self._check_count(num_tensors, _MIN_TENSOR_INFO, "tensors")
        self._check_count(num_pairs, _MIN_KEY_VALUE, "metadata pairs")
        return num_tensors, num_pairs

    def _read_value(self, value_type: int, key: str, depth: int) -> Any:
        if value_type == _STRING:
            return self._read_string(key)
        if value_type == _ARRAY:
            return self._read_array(key, depth)
        code = _SCALARS.get(value_type)
        if code is None:
            raise self._damaged(f"metadata {key!r} of value type {value_type}", "a type from 0 to 12")
        value = self._scalar(code)
        return bool(value) if value_type == _BOOL else value

    def _read_array(self, key: str, depth: int) -> list[Any]:
        if depth >= MAX_ARRAY_DEPTH:
            raise self._damaged(
                f"metadata {key!r} nested over {MAX_ARRAY_DEPTH} deep", "plain or nested arrays"
            )
        item_type, count = self._scalar("I"), self._scalar("Q")
        if item_type == _STRING:
            return self._read_strings(key, count)
        if item_type == _ARRAY:
            self._check_count(count, 12, f"arrays in {key!r}")
            return [self._read_array(key, depth + 1) for _ in range(count)]
        code = _SCALARS.get(item_type)
        if code is None:
            raise self._damaged(f"metadata {key!r} of item type {item_type}", "a type from 0 to 12")
        items = self._take(count, np.dtype(f"<{code}"), f"metadata {key!r}")
        return list((items.astype(bool) if item_type == _BOOL else items).tolist())

    def _read_strings(self, key: str, count: int) -> list[str]:
        """Read the vocabulary's way of holding strings; a loop as bare as it can be, for 262,144 of them."""
        self._check_count(count, 8, f"strings in {key!r}")
        strings: list[str] = []
        add, unpack, view, at, size = strings.append, _LENGTH.unpack_from, self._view, self._at, self._size
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(view, at)[0]
                if at > size:
                    raise self._cut_short(f"a string in {key!r}", at)
                add(str(view[start:at], "utf-8"))
        except struct.error:
            raise self._cut_short(f"a string in {key!r}", size + 1) from None
        except UnicodeDecodeError as error:
            raise self._not_text(f"a string in {key!r}", error) from None
        self._at = at
        return strings

    def _read_string(self, what: str) -> str:
        raw = self._take(self._scalar("Q"), np.dtype(np.uint8), what)
        try:
            return str(raw.data, "utf-8")
        except UnicodeDecodeError as error:
            raise self._not_text(what, error) from None

    def _read_tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._read_string("a tensor name")
        num_dimensions = self._scalar("I")
        if num_dimensions > MAX_DIMENSIONS:
            raise self._damaged(
                f"tensor {name!r} of {num_dimensions} dimensions", f"at most {MAX_DIMENSIONS}"
            )
        shape = tuple(self._scalar("Q") for _ in range(num_dimensions))[::-1]
        return name, shape, self._scalar("I"), self._scalar("Q")

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"alignment {alignment!r}", "a power of two")
        return alignment

    def _locate(
        self, entries: list[tuple[str, tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, TensorInfo]:
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, type_id, offset in entries:
            if name in tensors:
                raise self._damaged(f"tensor {name!r} twice", "each tensor once")
            type_name = self._type_name(name, type_id)
            num_bytes = self._num_bytes(name, shape, type_name)
            if offset % alignment:
                raise self._damaged(f"tensor {name!r} at offset {offset}", f"a multiple of {alignment}")
            begin = start + offset
            if begin + num_bytes > self._size:
                raise self._cut_short(f"tensor {name!r}", begin + num_bytes)
            tensors[name] = TensorInfo(name, shape, type_name, self._data[begin : begin + num_bytes])
        return tensors

    def _type_name(self, name: str, type_id: int) -> str:
        try:
            type_name = gguf.GGMLQuantizationType(type_id).name
        except ValueError:
            type_name = f"number {type_id}"
        if type_name not in SUPPORTED_TYPES:
            raise UnsupportedModelError(
                given=f"tensor {name!r} of type {type_name} in {self._path.name}",
                expected=f"one of {', '.join(SUPPORTED_TYPES)}",
                remedy="Use a file quantised to one of those types",
            )
        return type_name

    def _num_bytes(self, name: str, shape: tuple[int, ...], type_name: str) -> int:
        block = SUPPORTED_TYPES[type_name]
        if not shape or 0 in shape or shape[-1] % block.elements:
            raise self._damaged(
                f"tensor {name!r} of shape {list(shape)}", f"rows in blocks of {block.elements}"
            )
        return math.prod(shape) // block.elements * block.num_bytes

    def _scalar(self, code: str) -> Any:
        return self._take(1, np.dtype(f"<{code}"), "a number")[0].item()

    def _take(self, count: int, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
        end = self._at + count * dtype.itemsize
        if end > self._size:
            raise self._cut_short(what, end)
        items = self._data[self._at : end].view(dtype)
        self._at = end
        return items

    def _check_count(self, count: int, min_bytes: int, what: str) -> None:
        if count * min_bytes > self._size - self._at:
            raise self._damaged(f"{count} {what} announced", f"what {self._size} bytes can hold")

    def _cut_short(self, what: str, end: int) -> ModelError:
        return self._damaged(f"{what} reaches to byte {end}", f"an end within the file's {self._size} bytes")

    def _not_text(self, what: str, error: UnicodeDecodeError) -> ModelError:
        return self._damaged(f"{what} is not UTF-8 ({error.reason})", "UTF-8 text")

    def _damaged(self, given: str, expected: str, remedy: str = "Fetch the file again") -> ModelError:
        return ModelFileError(given=f"{self._path}: {given}", expected=expected, remedy=remedy)
