"""What all engine cores say of themselves."""

from __future__ import annotations

import logging

from paceline.errors import ConfigError
from paceline.vllm.bridge import Bridge
from paceline.vllm.engine_file import EngineFile, read_engine

log = logging.getLogger(__name__)


def read_engines(bridge: Bridge) -> list[EngineFile]:
    """Return what each engine core says of itself, by rank; one whose file cannot be used is left out, and
    logged."""
    found = []
    for rank in bridge.ranks():
        try:
            found.append(read_engine(bridge.engine_path(rank)))
        except FileNotFoundError:  # gone since it was listed
            continue
        except ConfigError as error:
            log.warning("an engine core's figures are left out: %s", error)
    return found
