"""From a path to a model that can be run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.errors import ConfigError, ModelFileError
from paceline.models.chat_template import ChatTemplate
from paceline.models.decoder import Decoder
from paceline.models.gguf_config import config_from_gguf
from paceline.models.gguf_file import GGUFFile
from paceline.models.tokenizer import Tokenizer
from paceline.models.weights import GGUFSource, load_weights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder with what turns text into its tokens, all from one file or folder."""

    name: str
    """What the file calls itself, else its file name."""
    path: Path
    num_bytes: int
    """Size of the model's files."""
    model: Decoder
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    context_length: int
    """Greatest number of positions that the model was made for."""


def pick_device(name: str) -> torch.device:
    """Return the device called "cpu", "cuda" or "auto" (an accelerator if PyTorch sees one).

    Raises:
        ConfigError: it is not there.
    """
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(
            given=f"device {name!r}", expected="auto, cpu or cuda", remedy="Choose one of these"
        )
    if name == "cuda" and not has_cuda:
        raise ConfigError(
            given="device 'cuda', which PyTorch does not see here",
            expected="a CUDA device and a PyTorch build for it",
            remedy="Use device 'cpu', or 'auto' to take what there is",
        )
    return torch.device(name)


def load_model(path: Path, device: str = "cpu") -> LoadedModel:
    """Load a GGUF file.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFileError, MissingTensorError: it is damaged or incomplete.
        UnsupportedModelError: its architecture, a tensor type or the kind of tokenizer is not supported.
        ConfigError: the device is not there.
    """
    place = pick_device(device)
    file = GGUFFile.open(path)
    config = config_from_gguf(file)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    _check_vocabulary(tokenizer, config.vocab_size, path)
    name = file.metadata.get("general.name")
    return LoadedModel(
        name=name if isinstance(name, str) and name else path.stem,
        path=path,
        num_bytes=path.stat().st_size,
        model=Decoder(config, load_weights(GGUFSource(file), config, place), place),
        tokenizer=tokenizer,
        chat_template=ChatTemplate.from_gguf(file.metadata, tokenizer),
        context_length=config.context_length,
    )


def decoder_from_gguf(file: GGUFFile, device: torch.device) -> Decoder:
    """Decode a GGUF file's tensors and wire them as its metadata say; the tokenizer is left aside."""
    config = config_from_gguf(file)
    return Decoder(config, load_weights(GGUFSource(file), config, device), device)


def _check_vocabulary(tokenizer: Tokenizer, num_rows: int, path: Path) -> None:
    """Token ids beyond the embedding would be an index error in the middle of a step."""
    if tokenizer.num_real_tokens > num_rows:
        raise ModelFileError(
            given=f"{tokenizer.num_real_tokens} tokens and {num_rows} embedding rows in {path}",
            expected="a row for every token",
            remedy="Convert or fetch the model anew",
        )
