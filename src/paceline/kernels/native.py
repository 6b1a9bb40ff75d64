"""The native module, or none where it was not built: the one place that tries to import it."""

from __future__ import annotations

import logging
from types import ModuleType

from paceline.errors import ConfigError

logger = logging.getLogger(__name__)


def load_native() -> ModuleType | None:
    """Return the native module, or none, with a warning, where it was not built."""
    try:
        from paceline.kernels import _native
    except ImportError as error:
        logger.warning("native kernels are not available (%s); everything is slower", error)
        return None
    return _native


native = load_native()


def use_instruction_set(name: str | None) -> None:
    """Make native kernels use this instruction set; none takes the best that the machine has.

    Raises:
        ConfigError: the machine does not have it, or there are no native kernels to use it.
    """
    if native is None:
        if name is None:
            return
        raise ConfigError(
            given=f"instruction set {name!r} without the native module",
            expected="paceline with its native module built",
            remedy="Unset PACELINE_ISA",
        )
    available = native.isas()
    if name is not None and name not in available:
        raise ConfigError(
            given=f"instruction set {name!r}",
            expected=f"one that this machine has: {', '.join(available)}",
            remedy="Correct PACELINE_ISA, or unset it to use the best one",
        )
    native.set_isa(name if name is not None else available[-1])
