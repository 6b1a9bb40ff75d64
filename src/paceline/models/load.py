"""From a path to a model that can be run."""

from __future__ import annotations

import torch

from paceline.models.decoder import Decoder
from paceline.models.gguf_config import config_from_gguf
from paceline.models.gguf_file import GGUFFile
from paceline.models.weights import GGUFSource, load_weights


def decoder_from_gguf(file: GGUFFile, device: torch.device) -> Decoder:
    """Decode a GGUF file's tensors and wire them as its metadata say."""
    config = config_from_gguf(file)
    return Decoder(config, load_weights(GGUFSource(file), config, device), device)
