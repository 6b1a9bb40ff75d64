"""Reading safetensors files and folders: memory-mapped and bounds-checked.

Format: https://github.com/huggingface/safetensors#format. The package of that name gives NumPy arrays, which
know no BF16; the format is small enough to read here, into the same records that GGUF files give.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ModelError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from paceline.models.json_file import parse_json, read_json
from paceline.models.tensors import TensorInfo

INDEX_NAME, SINGLE_NAME = "model.safetensors.index.json", "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_DIMENSIONS = 8
_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}


def read_safetensors(folder: Path) -> dict[str, TensorInfo]:
    """Map a folder's tensors: of all shards that its index names, else of `model.safetensors`.

    Raises:
        ModelNotFoundError: there are no such files.
        ModelFileError: one is damaged, or a shard lacks what the index says.
        UnsupportedModelError: a tensor is not F32, F16 or BF16.
    """
    index = folder / INDEX_NAME
    if not index.exists():
        return read_safetensors_file(folder / SINGLE_NAME)
    places = _read_index(index)
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(set(places.values())):
        tensors |= read_safetensors_file(folder / shard)
    missing = sorted(places.keys() - tensors.keys())
    if missing:
        raise _damaged(index, f"tensor {missing[0]!r} that no shard holds", "shards with all that it names")
    return tensors


def _read_index(index: Path) -> dict[str, str]:
    try:
        places = read_json(index)["weight_map"]
        valid = all(isinstance(name, str) and Path(name).name == name for name in places.values())
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(index, f"no readable weight map ({error!r})", "JSON with a weight_map") from None
    if not valid:
        raise _damaged(index, "a shard outside the folder", "plain file names")
    return dict(places)


def read_safetensors_file(path: Path) -> dict[str, TensorInfo]:
    """Map one file's tensors; errors as in `read_safetensors`."""
    try:
        mapped = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise ModelNotFoundError(
            given=f"{path} cannot be read ({error.strerror})",
            expected=f"a GGUF file, or a folder with config.json and {SINGLE_NAME} or its shards",
            remedy="Check the path",
        ) from None
    data = np.asarray(mapped)
    header, buffer = _split(path, data)
    return {name: _locate(path, name, entry, buffer) for name, entry in header.items()}


def _split(path: Path, data: NDArray[np.uint8]) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    size = int.from_bytes(data[:8].tobytes(), "little")
    if len(data) < 8 or size > min(MAX_HEADER_BYTES, len(data) - 8):
        raise _damaged(path, f"a header of {size} bytes in a file of {len(data)}", "one that fits the file")
    header = parse_json(data[8 : 8 + size].tobytes(), f"the header of {path}")
    header.pop("__metadata__", None)
    return header, data[8 + size :]


def _locate(path: Path, name: str, entry: Mapping[str, Any], buffer: NDArray[np.uint8]) -> TensorInfo:
    try:
        type_name, shape = entry["dtype"], tuple(map(int, entry["shape"]))
        begin, end = map(int, entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _damaged(
            path, f"tensor {name!r} badly described ({error!r})", "dtype, shape, offsets"
        ) from None
    if not isinstance(type_name, str) or type_name not in _WIDTHS:
        raise UnsupportedModelError(
            given=f"tensor {name!r} of type {type_name} in {path.name}",
            expected=f"one of {', '.join(_WIDTHS)}",
            remedy="Use a file in one of those types",
        )
    if not 0 <= begin <= end <= len(buffer):
        raise _damaged(path, f"tensor {name!r} reaches to byte {end}", f"an end within {len(buffer)} bytes")
    if (
        len(shape) > MAX_DIMENSIONS
        or min(shape, default=1) < 0
        or end - begin != math.prod(shape) * _WIDTHS[type_name]
    ):
        raise _damaged(
            path, f"tensor {name!r} with {end - begin} bytes", f"what {list(shape[:MAX_DIMENSIONS])} takes"
        )
    return TensorInfo(name, shape, type_name, buffer[begin:end])


def _damaged(path: Path, given: str, expected: str) -> ModelError:
    return ModelFileError(given=f"{path}: {given}", expected=expected, remedy="Fetch the file again")
