"""From a path to a model that can be run."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline.errors import ConfigError, ModelFileError
from paceline.models.build import choose_decoder
from paceline.models.chat_template import ChatTemplate
from paceline.models.decoder_config import DecoderConfig
from paceline.models.devices import prepare
from paceline.models.download_progress import ConsoleProgress, Progress
from paceline.models.frequent_tokens import frequent_tokens
from paceline.models.gguf_config import config_from_gguf
from paceline.models.gguf_file import GGUFFile
from paceline.models.interface import CausalModel
from paceline.models.options import LoadOptions
from paceline.models.safetensors_config import config_from_folder
from paceline.models.safetensors_file import read_safetensors
from paceline.models.safetensors_names import with_gguf_names
from paceline.models.tensor_reader import EMBEDDING, HEAD
from paceline.models.tensors import TensorSource
from paceline.models.tokenizer import Tokenizer

LARGE_BYTES = 100_000_000
"""Decoding a file of this size can take over a second."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder with what turns text into its tokens, all from one file or folder."""

    name: str
    """What the file calls itself, else its file name."""
    path: Path
    num_bytes: int
    """Size of the model's tensors as stored."""
    step_bytes: int
    """Of these, what a forward pass of one row reads: all, but of a separate embedding one row."""
    model: CausalModel
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    context_length: int
    """Greatest number of positions that the model was made for."""


@dataclass(frozen=True, slots=True)
class _Description:
    """All of a model but its decoded weights: what can be checked before they are read."""

    name: str
    config: DecoderConfig
    source: TensorSource
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


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


def load_model(
    path: Path, device: str = "cpu", options: LoadOptions | None = None, progress: Progress | None = None
) -> LoadedModel:
    """Load a GGUF file, or a folder (or a safetensors file in one) with config.json and tokenizer.json.

    Args:
        path: the file or folder.
        device: "cpu", "cuda" or "auto".
        options: which arithmetic runs it and how its weights are held.
        progress: where to report on the decoding of the weights; none means stderr, for models large enough
            to take a while.

    Raises:
        ModelNotFoundError: a file is not there.
        ModelFileError, MissingTensorError: one is damaged or incomplete.
        UnsupportedModelError: the architecture, a tensor type or the kind of tokenizer is not supported.
        ConfigError: the device is not there, or `options` ask for what it cannot do.
    """
    place = pick_device(device)
    prepare(place)
    if path.suffix == ".safetensors":
        path = path.parent
    model = _describe_folder(path) if path.is_dir() else _describe_gguf(path)
    _check_vocabulary(model)
    num_bytes = sum(tensor.data.nbytes for tensor in model.source.tensors.values())
    if progress is None and num_bytes >= LARGE_BYTES:
        progress = ConsoleProgress()
    with progress.track(f"Loading {model.name}", num_bytes) if progress else nullcontext() as tracker:
        decoder = choose_decoder(
            model.config,
            model.source,
            place,
            options or LoadOptions(),
            tracker.advance if tracker else None,
            frequent_tokens(model.tokenizer) if options and options.reduce_vocabulary else None,
        )
    return LoadedModel(
        name=model.name,
        path=path,
        num_bytes=num_bytes,
        step_bytes=_step_bytes(model.source, model.config),
        model=decoder,
        tokenizer=model.tokenizer,
        chat_template=model.chat_template,
        context_length=model.config.context_length,
    )


def weight_bytes(path: Path) -> int:
    """Return about how many bytes a model's weights take: those of its files."""
    if path.suffix == ".safetensors":
        path = path.parent
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def gguf_decoder(file: GGUFFile) -> tuple[DecoderConfig, TensorSource]:
    """Return what a GGUF file says of its decoder, without decoding a tensor."""
    return config_from_gguf(file), TensorSource(str(file.path), file.tensors)


def folder_decoder(folder: Path) -> tuple[DecoderConfig, TensorSource]:
    """Return the same of a folder with config.json and safetensors files."""
    config, is_tied = config_from_folder(folder)
    tensors = with_gguf_names(read_safetensors(folder), config, is_tied, str(folder))
    return config, TensorSource(str(folder), tensors)


def _describe_gguf(path: Path) -> _Description:
    file = GGUFFile.open(path)
    config, source = gguf_decoder(file)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    name = file.metadata.get("general.name")
    return _Description(
        name=name if isinstance(name, str) and name else path.stem,
        config=config,
        source=source,
        tokenizer=tokenizer,
        chat_template=ChatTemplate.from_gguf(file.metadata, tokenizer),
    )


def _describe_folder(folder: Path) -> _Description:
    config, source = folder_decoder(folder)
    tokenizer = Tokenizer.from_tokenizer_json(folder)
    return _Description(
        name=folder.resolve().name,
        config=config,
        source=source,
        tokenizer=tokenizer,
        chat_template=ChatTemplate.from_folder(folder, tokenizer),
    )


def _step_bytes(source: TensorSource, config: DecoderConfig) -> int:
    num_bytes = sum(tensor.data.nbytes for tensor in source.tensors.values())
    if HEAD not in source.tensors:
        return num_bytes
    table = source.tensors[EMBEDDING].data.nbytes
    return num_bytes - table + table // config.vocab_size


def _check_vocabulary(model: _Description) -> None:
    """Token ids beyond the embedding would be an index error in the middle of a step."""
    num_rows, num_tokens = model.config.vocab_size, model.tokenizer.num_real_tokens
    if num_tokens > num_rows:
        raise ModelFileError(
            given=f"{num_tokens} tokens and {num_rows} embedding rows in {model.source.where}",
            expected="a row for every token",
            remedy="Convert or fetch the model anew",
        )
