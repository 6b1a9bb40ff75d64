"""Acceptance histories on disk, one file for each target with its draft models, or each replica of them."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path

from paceline.errors import ConfigError
from paceline.policy.files import write_whole
from paceline.policy.history import History

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 20


class HistoryStore:
    """One file of a folder.

    Args:
        folder: of all histories.
        key: of target and draft models, by the content of their files (`cost_store.cost_key`); acceptance of
            other models says nothing of these.
        replica: number among engines of the same models that serve at the same time; each has a file of its
            own, so that none writes over what another learned. None for an engine that serves alone.
    """

    def __init__(self, folder: Path, key: str, replica: int | None = None) -> None:
        self.path = folder / (f"{key}.json" if replica is None else f"{key}.{replica}.json")
        self.key = key

    def load(self) -> History | None:
        """Return the history; where there is none of this engine's own, the latest of another engine of these
        models. None where there is none at all, or one that cannot be used, which is logged."""
        try:
            return self._read(self.path)
        except FileNotFoundError:
            return self._latest_of_others()

    def _latest_of_others(self) -> History | None:
        written = {}
        for path in self.path.parent.glob(f"{self.key}*.json"):
            with contextlib.suppress(OSError):  # gone since it was listed
                written[path] = path.stat().st_mtime_ns
        for path in sorted(written, key=lambda one: written[one], reverse=True):
            with contextlib.suppress(FileNotFoundError):
                if (found := self._read(path)) is not None:
                    return found
        return None

    def _read(self, path: Path) -> History | None:
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            found = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or found.get("key") != self.key:
                raise ValueError("it is that of other models")
            return History.read(found["history"])
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, RecursionError, ConfigError) as error:
            log.warning("the acceptance history in %s is not used, and is learned anew: %s", path, error)
            return None

    def save(self, history: History) -> Path:
        """Write a history, whole or not at all, and return its path. Safe in any thread.

        Raises:
            ConfigError: the folder cannot be written.
        """
        text = json.dumps({"key": self.key, "history": history.to_json()}, ensure_ascii=False)
        write_whole(self.path, text, "an acceptance history")
        return self.path
