"""From a description and a file to a decoder on native kernels. Import only where they were built."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paceline.models.decoder_config import DecoderConfig
from paceline.models.native_decoder import NativeDecoder
from paceline.models.native_weights import pack_weights
from paceline.models.options import LoadOptions
from paceline.models.tensors import TensorSource


def build_native(
    config: DecoderConfig,
    source: TensorSource,
    options: LoadOptions,
    advance: Callable[[int], None] | None = None,
    head_ids: NDArray[np.uint32] | None = None,
) -> NativeDecoder:
    """Pack the tensors and wire them; arguments as in `build.choose_decoder`."""
    return NativeDecoder(config, pack_weights(source, config, options.weights, head_ids, advance))
