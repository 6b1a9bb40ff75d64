"""Calibrated step costs on disk, one file for each pair of models, machine and number of threads."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from paceline.errors import ConfigError
from paceline.policy.files import write_whole
from paceline.policy.step_costs import CalibratedCosts

log = logging.getLogger(__name__)


def cost_key(parts: Mapping[str, str]) -> str:
    """Return a name for models, machine and threads, given in words: equal exactly where all of them are."""
    text = json.dumps(dict(parts), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class CostStore:
    """A folder of calibrations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        """Return where the calibration of a key is, or would be."""
        return self.folder / f"{key}.json"

    def load(self, key: str) -> CalibratedCosts | None:
        """Return a calibration; none where there is none, or one that cannot be used, which is logged."""
        path = self.path(key)
        try:
            found = CalibratedCosts.from_json(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, AttributeError, TypeError, ConfigError) as error:
            log.warning("the step costs in %s are of no use and are measured again: %s", path, error)
            return None
        if found.key != key:
            log.warning("the step costs in %s are those of another machine or model", path)
            return None
        return found

    def save(self, costs: CalibratedCosts) -> Path:
        """Write a calibration, whole or not at all, and return its path.

        Raises:
            ConfigError: the folder cannot be written.
        """
        path = self.path(costs.key)
        write_whole(path, json.dumps(costs.to_json(), indent=1), "step costs")
        return path
