"""What a report says of models and machine, from their files and the system."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.engine.calibration import file_digest
from paceline.models.gguf_file import GGUFFile
from paceline.models.load import folder_decoder, gguf_decoder, weight_bytes
from paceline.models.tensor_reader import EMBEDDING, HEAD

FLOPS_PER_WEIGHT = 2
"""A multiplication and an addition for each weight and row (Kaplan et al., arXiv 2001.08361, section 2.1);
attention over the context is left out."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model, from its file."""

    name: str
    """As it was asked for."""
    digest: str
    """Of its files: sizes, beginnings and ends."""
    weight_bytes: int
    """Of its files."""
    num_parameters: int
    flops_per_row: int
    """Of one row through all its matrices, an embedding that is only looked up left out."""
    kv_values_per_token: int
    """Keys and values of one position, over all layers."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "name": self.name,
            "digest": self.digest,
            "weight_bytes": self.weight_bytes,
            "num_parameters": self.num_parameters,
            "flops_per_row": self.flops_per_row,
            "kv_values_per_token": self.kv_values_per_token,
        }


def model_facts(name: str, path: Path) -> ModelFacts:
    """Return the facts of a model file or folder.

    Raises:
        ModelError: it cannot be used.
    """
    folder = path.parent if path.suffix == ".safetensors" else path
    config, source = folder_decoder(folder) if folder.is_dir() else gguf_decoder(GGUFFile.open(path))
    sizes = {key: math.prod(tensor.shape) for key, tensor in source.tensors.items()}
    num_parameters = sum(sizes.values())
    looked_up = sizes[EMBEDDING] if HEAD in sizes else 0
    return ModelFacts(
        name,
        file_digest(path),
        weight_bytes(path),
        num_parameters,
        FLOPS_PER_WEIGHT * (num_parameters - looked_up),
        2 * config.num_layers * config.num_kv_heads * config.head_dim,
    )


def machine_name() -> str:
    """Return the processor and the system in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{cpu or platform.processor() or 'unknown processor'}, {platform.system()} {platform.machine()}"
