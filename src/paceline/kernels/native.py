"""The native module, or none where it was not built: the one place that tries to import it."""

from __future__ import annotations

import logging
from types import ModuleType

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
