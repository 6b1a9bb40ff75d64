"""Tensors by name with their shapes checked: what every kind of decoder is built from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.errors import MissingTensorError, ModelFileError
from paceline.models.decoder_config import DecoderConfig
from paceline.models.tensors import TensorInfo, TensorSource

logger = logging.getLogger(__name__)

EMBEDDING, HEAD, FINAL_NORM, ROPE_FACTORS = (
    "token_embd.weight",
    "output.weight",
    "output_norm.weight",
    "rope_freqs.weight",
)


class TensorReader:
    """Reads a decoder's tensors, and remembers which were read.

    Args:
        source: the tensors.
        config: of the decoder.
        advance: told the number of bytes of the file that each step has dealt with, all of them in the end.
    """

    def __init__(
        self, source: TensorSource, config: DecoderConfig, advance: Callable[[int], None] | None = None
    ) -> None:
        self.config = config
        self._source, self._advance = source, advance
        self._used = set[str]()
        self._num_bytes_left = sum(tensor.data.nbytes for tensor in source.tensors.values())

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self._source.tensors

    @property
    def head_name(self) -> str:
        """Name of the output matrix: the embedding, where the file has no other."""
        return HEAD if self.has(HEAD) else EMBEDDING

    def tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """Return a tensor of exactly this shape.

        Raises:
            MissingTensorError: it is not there.
            ModelFileError: it has another shape.
        """
        if (tensor := self._source.tensors.get(name)) is None:
            raise MissingTensorError(
                given=f"no tensor {name!r} in {self._source.where}",
                expected=f"one of shape {list(shape)} for a {self.config.family} model",
                remedy="Fetch a complete model file",
            )
        if tensor.shape != shape:
            raise ModelFileError(
                given=f"tensor {name!r} of shape {list(tensor.shape)} in {self._source.where}",
                expected=f"shape {list(shape)}, as the file's own description says",
                remedy="Convert or fetch the model anew",
            )
        self._used.add(name)
        return tensor

    def vector(self, name: str, size: int) -> NDArray[np.float32]:
        """Return float32 [size]."""
        tensor = self.tensor(name, (size,))  # checked before memory is taken for a size that may be nonsense
        values = np.empty(size, np.float32)
        self.read(tensor, values)
        return values

    def norm(self, name: str, size: int) -> NDArray[np.float32]:
        """Return a norm's weights with the family's offset added: float32 [size]."""
        return self.vector(name, size) + np.float32(self.config.norm_offset)

    def bias(
        self, names: Sequence[str], sizes: Sequence[int], is_required: bool = False
    ) -> NDArray[np.float32] | None:
        """Return biases one after another; none where the file has none of them and need not."""
        names = [f"{name}.bias" for name in names]
        if not is_required and not any(map(self.has, names)):
            return None
        return np.concatenate([self.vector(name, size) for name, size in zip(names, sizes, strict=True)])

    def rope_factors(self) -> NDArray[np.float32] | None:
        """Return divisors of the rotary frequencies, float32 [head_dim / 2], if the file has any.

        Raises:
            ModelFileError: one is not a positive number, or they are not as many.
        """
        if not self.has(ROPE_FACTORS):
            return None
        factors = self.vector(ROPE_FACTORS, self.config.head_dim // 2)
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise ModelFileError(
                given=f"tensor {ROPE_FACTORS!r} in {self._source.where} with values {factors.tolist()}",
                expected="positive divisors",
                remedy="Convert or fetch the model anew",
            )
        return factors

    def read(self, tensor: TensorInfo, out: NDArray[np.float32]) -> None:
        """Decode a tensor into contiguous float32 memory of its shape."""
        tensor.read(out)
        self.report(tensor.data.nbytes)

    def report(self, num_bytes: int) -> None:
        """Count bytes of the file as dealt with."""
        self._num_bytes_left -= num_bytes
        if self._advance is not None:
            self._advance(num_bytes)

    def finish(self) -> None:
        """Count what stays in the file as dealt with, and log what nothing asked for."""
        self.report(self._num_bytes_left)
        for name in sorted(self._source.tensors.keys() - self._used):
            logger.debug("tensor %s in %s is not used", name, self._source.where)
