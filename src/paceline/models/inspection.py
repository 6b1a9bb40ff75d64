"""What a model file holds, found out without loading a weight."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.models.chat_template import ChatTemplate
from paceline.models.decoder_config import DecoderConfig
from paceline.models.gguf_file import GGUFFile
from paceline.models.load import folder_decoder, gguf_decoder
from paceline.models.tensors import TensorInfo, TensorSource
from paceline.models.tokenizer import Tokenizer

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class TensorTypeUse:
    """How much of a file one tensor type makes up."""

    type: str
    num_tensors: int
    num_parameters: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """A model file, or a folder with one, in figures."""

    path: str
    file_bytes: int
    name: str | None
    """The name that the file gives itself."""
    architecture: str
    num_parameters: int
    """Every tensor's elements; tied embeddings count once, as they are stored once."""
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    context_length: int
    sliding_window: int | None
    kv_bytes_per_token: int
    """Keys and values of one position in float32, over all layers."""
    tokenizer: str
    """Kind and, where there is one, pre-tokenizer, as a GGUF file names them; or `tokenizer.json`."""
    has_chat_template: bool
    tensor_types: tuple[TensorTypeUse, ...]
    """Most bytes first."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `paceline models inspect --json` prints."""
        return asdict(self)


def inspect_model(path: Path) -> Inspection:
    """Read what a GGUF file, a safetensors file or a model folder says of itself.

    Raises:
        ModelNotFoundError, ModelFileError, UnsupportedModelError: as loading the model would.
    """
    if path.suffix == ".safetensors":
        path = path.parent
    return _inspect_folder(path) if path.is_dir() else _inspect_gguf(path)


def _inspect_gguf(path: Path) -> Inspection:
    file = GGUFFile.open(path)
    metadata = file.metadata
    kind, pre = metadata.get("tokenizer.ggml.model", "none"), metadata.get("tokenizer.ggml.pre")
    return _inspection(
        path,
        *gguf_decoder(file),
        name=metadata.get("general.name"),
        tokenizer=f"{kind} ({pre})" if pre else str(kind),
        has_chat_template="tokenizer.chat_template" in metadata,
    )


def _inspect_folder(folder: Path) -> Inspection:
    decoder = folder_decoder(folder)
    template = ChatTemplate.from_folder(folder, Tokenizer.from_tokenizer_json(folder))
    return _inspection(
        folder,
        *decoder,
        name=None,
        tokenizer="tokenizer.json",
        has_chat_template=template is not None,
    )


def _inspection(
    path: Path,
    config: DecoderConfig,
    source: TensorSource,
    *,
    name: str | None,
    tokenizer: str,
    has_chat_template: bool,
) -> Inspection:
    types = _tensor_types(source.tensors)
    kv_values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return Inspection(
        path=str(path),
        file_bytes=sum(file.stat().st_size for file in _weight_files(path)),
        name=name,
        architecture=config.family,
        num_parameters=sum(use.num_parameters for use in types),
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        sliding_window=config.sliding_window,
        kv_bytes_per_token=kv_values * FLOAT32_BYTES,
        tokenizer=tokenizer,
        has_chat_template=has_chat_template,
        tensor_types=types,
    )


def _weight_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def _tensor_types(tensors: Mapping[str, TensorInfo]) -> tuple[TensorTypeUse, ...]:
    by_type: dict[str, list[TensorInfo]] = {}
    for tensor in tensors.values():
        by_type.setdefault(tensor.type, []).append(tensor)
    uses = [
        TensorTypeUse(
            type=name,
            num_tensors=len(members),
            num_parameters=sum(math.prod(tensor.shape) for tensor in members),
            num_bytes=sum(tensor.data.nbytes for tensor in members),
        )
        for name, members in by_type.items()
    ]
    return tuple(sorted(uses, key=lambda use: use.num_bytes, reverse=True))
