"""Which decoder runs a model: the native kernels where they can, else the float32 reference."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.errors import ConfigError, PacelineError, UnsupportedModelError
from paceline.kernels.native import native
from paceline.kernels.threads import num_threads
from paceline.models.decoder import Decoder
from paceline.models.decoder_config import DecoderConfig
from paceline.models.interface import CausalModel
from paceline.models.options import Kernels, LoadOptions, Weights
from paceline.models.tensors import TensorSource
from paceline.models.weights import load_weights

logger = logging.getLogger(__name__)


def build_decoder(
    config: DecoderConfig,
    source: TensorSource,
    device: torch.device,
    advance: Callable[[int], None] | None = None,
) -> Decoder:
    """Decode the tensors and wire them: the float32 reference. `advance` is told of each step's bytes."""
    return Decoder(config, load_weights(source, config, device, advance), device)


def choose_decoder(
    config: DecoderConfig,
    source: TensorSource,
    device: torch.device,
    options: LoadOptions,
    advance: Callable[[int], None] | None = None,
    frequent_ids: NDArray[np.uint32] | None = None,
) -> CausalModel:
    """Return the decoder that `options` ask for.

    Args:
        config: of the decoder.
        source: its tensors.
        device: what it is to run on.
        options: how it is to run.
        advance: told the number of bytes of the file that each step has dealt with.
        frequent_ids: token ids, uint32, rising, that a native output layer is to keep; none keeps all.

    Raises:
        ConfigError: native kernels, or weights that only they have, are asked for on another device, or where
            they were not built.
        UnsupportedModelError: the same for a model that they cannot run.
    """
    options, obstacle = options_taken(config, source, device, options)
    if obstacle is None:
        from paceline.models.native import build_native

        assert native is not None
        how = (native.isa(), num_threads(), options.weights)
        logger.info("%s runs on native kernels (%s, %d threads, weights as %s)", source.where, *how)
        return build_native(config, source, options, advance, frequent_ids)
    if options.kernels is Kernels.NATIVE or options.weights is not Weights.FILE:
        raise obstacle
    # Nobody asked for the slow way round where the model itself is the obstacle.
    level = logging.WARNING if isinstance(obstacle, UnsupportedModelError) else logging.INFO
    logger.log(level, "%s runs on the float32 reference on %s: %s", source.where, device, obstacle.given)
    return build_decoder(config, source, device, advance)


def options_taken(
    config: DecoderConfig, source: TensorSource, device: torch.device, options: LoadOptions
) -> tuple[LoadOptions, PacelineError | None]:
    """Return the options that a decoder would be built with, and what keeps it from the native kernels, if
    anything does."""
    obstacle = _obstacle(config, source, device, options)
    if obstacle is not None and not options.needs_weights and options.weights is not Weights.FILE:
        options = replace(options, weights=Weights.FILE)
        obstacle = _obstacle(config, source, device, options)
    return options, obstacle


def _obstacle(
    config: DecoderConfig, source: TensorSource, device: torch.device, options: LoadOptions
) -> PacelineError | None:
    """Return what keeps a model from the native kernels, as the error of one who insists on them."""
    wanted = "native kernels" if options.kernels is Kernels.NATIVE else f"weights as {options.weights}"
    if options.kernels is Kernels.REFERENCE:
        return ConfigError(
            given="reference kernels, as asked for"
            if options.weights is Weights.FILE
            else f"{wanted} with reference kernels",
            expected="native kernels for weights that are re-quantised",
            remedy="Set kernels to 'auto' or 'native', or weights to 'file'",
        )
    if device.type != "cpu":
        return ConfigError(
            given=f"{wanted} on device {device}",
            expected="device 'cpu', which native kernels are for",
            remedy="Set device to 'cpu'",
        )
    if native is None:
        return ConfigError(
            given=f"{wanted} without the native module",
            expected="paceline with its native module built",
            remedy="Install a wheel, or a C++ compiler and build the package again",
        )
    from paceline.models.native_weights import unsupported_by_native

    reason = unsupported_by_native(source, config, options.weights)
    if reason is None:
        return None
    return UnsupportedModelError(
        given=f"{reason} in {source.where}",
        expected="sizes and tensor types that native kernels have",
        remedy="Set weights to 'int8' to re-quantise such tensors, or kernels to 'reference'",
    )
