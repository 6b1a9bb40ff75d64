"""What the engine will hold of a model, in bytes, from its file's description: nothing is loaded.

The sums are those of the code that builds it: packed blocks (`kernels.packed`), float16 or float32 KV, and
the buffers of a forward pass (`native/model.cpp`, `models.decoder`). Tests hold them to what was built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.models.build import options_taken
from paceline.models.decoder import reference_workspace
from paceline.models.decoder_config import DecoderConfig
from paceline.models.frequent_tokens import frequent_tokens
from paceline.models.gguf_file import GGUFFile
from paceline.models.kv_arena import KVLayout
from paceline.models.load import folder_decoder, gguf_decoder
from paceline.models.options import LoadOptions
from paceline.models.tensor_reader import TensorReader
from paceline.models.tensors import TensorInfo, TensorSource
from paceline.models.tokenizer import Tokenizer

FLOAT_BYTES, HALF_BYTES = 4, 2
GROUP, GROUP_BYTES = 32, 64
"""Inputs of a quantised activation group, and its bytes; rows have an even number of groups."""
KERNEL_BLOCK, PARTITION, MOST_QUERIES, SHARES = 16, 256, 64, 16
"""Of the attention kernel (`native/attention.h`, `native/ops_attention.cpp`)."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """One model as the engine would hold it."""

    name: str
    num_parameters: int
    file_bytes: int
    """Of its tensors, as stored."""
    weight_bytes: int
    """In memory. An embedding beside a packed or separate head stays in its file."""
    kv: KVLayout
    vocab_size: int
    context_length: int
    tokenizer: Tokenizer
    is_native: bool
    workspace: Callable[[int, int, int], int]
    """(rows, logits, positions of the longest sequence) of a pass to its bytes; `CausalModel` says more."""


def footprint(path: Path, options: LoadOptions) -> Footprint:
    """Return what a model would take on this machine's CPU, held as `options` say.

    Args:
        path: GGUF file, safetensors file or model folder.
        options: as for `load.load_model`.

    Raises:
        ModelNotFoundError, ModelFileError, UnsupportedModelError, MissingTensorError: as loading would.
    """
    if path.suffix == ".safetensors":
        path = path.parent
    if path.is_dir():
        (config, source), tokenizer = folder_decoder(path), Tokenizer.from_tokenizer_json(path)
    else:
        file = GGUFFile.open(path)
        (config, source), tokenizer = gguf_decoder(file), Tokenizer.from_gguf(file.metadata)
    options, obstacle = options_taken(config, source, torch.device("cpu"), options)
    reader = TensorReader(source, config)
    ids = frequent_tokens(tokenizer) if options.reduce_vocabulary and obstacle is None else None
    head_rows = config.vocab_size if ids is None else len(ids)
    value_bytes = HALF_BYTES if obstacle is None else FLOAT_BYTES
    row = config.num_kv_heads * config.head_dim * value_bytes
    return Footprint(
        name=path.name,
        num_parameters=sum(math.prod(tensor.shape) for tensor in source.tensors.values()),
        file_bytes=sum(tensor.data.nbytes for tensor in source.tensors.values()),
        weight_bytes=_packed(reader, source, options, head_rows)
        if obstacle is None
        else _float32(reader, source),
        kv=KVLayout(2 * config.num_layers * row, row * (KERNEL_BLOCK if obstacle is None else 1)),
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        tokenizer=tokenizer,
        is_native=obstacle is None,
        workspace=lambda rows, logits, positions: (
            native_workspace(config, head_rows, rows, logits, positions)
            if obstacle is None
            else reference_workspace(config, rows, logits, positions)
        ),
    )


def _matrices(reader: TensorReader, source: TensorSource) -> Iterator[TensorInfo]:
    """Give every matrix but the embedding, and the head, which may be the embedding."""
    for name, tensor in source.tensors.items():
        if name == reader.head_name or (name.startswith("blk.") and len(tensor.shape) == 2):
            yield tensor


def _packed(reader: TensorReader, source: TensorSource, options: LoadOptions, head_rows: int) -> int:
    from paceline.kernels.packed import TRANSCODED_TYPES, packed_bytes
    from paceline.models.native_weights import requantised_format

    total = 0
    for tensor in _matrices(reader, source):
        wanted = requantised_format(tensor.type, options.weights)
        packed_format = wanted or TRANSCODED_TYPES.get(tensor.type, tensor.type)
        num_rows = head_rows if tensor.name == reader.head_name else tensor.shape[0]
        total += packed_bytes(packed_format, num_rows, tensor.shape[1])
    return total


def _float32(reader: TensorReader, source: TensorSource) -> int:
    return FLOAT_BYTES * sum(math.prod(tensor.shape) for tensor in _matrices(reader, source))


def native_workspace(
    config: DecoderConfig, head_rows: int, num_rows: int, num_logits: int, num_positions: int
) -> int:
    """Return the most bytes of a native forward pass besides weights and KV, its logits included."""
    head = config.head_dim
    mixed, kv = config.num_heads * head, config.num_kv_heads * head
    num_rotaries = len({config.rotary_of(layer) for layer in range(config.num_layers)})
    floats = 2 * config.hidden_size + mixed + 2 * kv + mixed + 2 * config.intermediate_size
    floats += 2 * (head // 2) * num_rotaries
    groups = sum(
        -(-size // (2 * GROUP)) * 2 for size in (config.hidden_size, mixed, config.intermediate_size)
    )
    reduced = num_logits * head_rows if head_rows < config.vocab_size else 0
    tiles = SHARES // config.num_kv_heads + 1
    rows_per_tile = max(1, MOST_QUERIES // (config.num_heads // config.num_kv_heads))
    split_rows = min(num_rows, tiles * rows_per_tile)
    scratch = split_rows * config.num_heads * (head + 2) * -(-num_positions // PARTITION)
    return (
        FLOAT_BYTES * (num_rows * floats + reduced + scratch + num_logits * config.vocab_size)
        + GROUP_BYTES * groups * num_rows
    )
