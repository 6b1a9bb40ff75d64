"""Reading safetensors files and folders: memory-mapped and bounds-checked.

Format: https://github.com/huggingface/safetensors#format. The package of that name gives NumPy arrays, which
know no BF16; the format is small enough to read here, into the same records that GGUF files give.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import ModelError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from paceline.models.json_file import parse_json, read_text
from paceline.models.tensors import TensorInfo

logger = logging.getLogger(__name__)

INDEX_NAME, SINGLE_NAME = "model.safetensors.index.json", "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_DIMENSIONS = 8
_WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}


def read_safetensors(folder: Path) -> dict[str, TensorInfo]:
    """Map a folder's tensors: of all shards that its index names, else of `model.safetensors`.

    Raises:
        ModelNotFoundError: there are no such files.
        ModelFileError: one is damaged, or shards and index disagree.
        UnsupportedModelError: a tensor is not F32, F16 or BF16.
    """
    index = folder / INDEX_NAME
    if not index.exists():
        return read_safetensors_file(folder / SINGLE_NAME)
    places = _read_index(index)
    shards = {shard: read_safetensors_file(folder / shard) for shard in sorted(set(places.values()))}
    for shard, tensors in shards.items():
        _check_shard(index, places, shard, tensors)
    return {name: shards[shard][name] for name, shard in places.items()}


def _read_index(index: Path) -> dict[str, str]:
    places = parse_json(read_text(index), index, has_unique_keys=True).get("weight_map")
    if not isinstance(places, dict):
        raise _damaged(index, f"no readable weight map ({type(places).__name__})", "an object weight_map")
    for name, shard in places.items():
        if not isinstance(shard, str) or shard in ("", ".", "..") or any(sign in shard for sign in "/\\\0"):
            raise _damaged(index, f"tensor {name!r} in {shard!r}", "the plain name of a file in this folder")
    return places


def _check_shard(
    index: Path, places: Mapping[str, str], shard: str, tensors: Mapping[str, TensorInfo]
) -> None:
    """Each tensor must be in the shard that the index names, and in no other."""
    missing = sorted(name for name, place in places.items() if place == shard and name not in tensors)
    if missing:
        raise _damaged(
            index, f"tensor {missing[0]!r} that {shard} lacks", "each tensor in the shard it names"
        )
    twice = sorted(name for name in tensors if places.get(name, shard) != shard)
    if twice:
        others = f"{places[twice[0]]} and {shard}"
        raise _damaged(index, f"tensor {twice[0]!r} in both {others}", "each tensor in one shard")
    if unlisted := sorted(tensors.keys() - places.keys()):
        logger.warning("%s: %s holds tensors that the index lacks: %s", index, shard, ", ".join(unlisted))


def read_safetensors_file(path: Path) -> dict[str, TensorInfo]:
    """Map one file's tensors; errors as in `read_safetensors`."""
    try:
        mapped = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    except (OSError, ValueError) as error:  # a ValueError where the name cannot be one
        raise ModelNotFoundError(
            given=f"{path} cannot be read ({getattr(error, 'strerror', error)})",
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
    header = parse_json(data[8 : 8 + size].tobytes(), f"the header of {path}", has_unique_keys=True)
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
