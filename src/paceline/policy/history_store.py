"""Acceptance histories on disk, one file for each target with its draft models."""

from __future__ import annotations

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
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / f"{key}.json"
        self.key = key

    def load(self) -> History | None:
        """Return the history; none where there is none, or one that cannot be used, which is logged."""
        try:
            if self.path.stat().st_size > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or found.get("key") != self.key:
                raise ValueError("it is that of other models")
            return History.read(found["history"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, RecursionError, ConfigError) as error:
            log.warning("the acceptance history in %s is not used, and is learned anew: %s", self.path, error)
            return None

    def save(self, history: History) -> Path:
        """Write a history, whole or not at all, and return its path. Safe in any thread.

        Raises:
            ConfigError: the folder cannot be written.
        """
        text = json.dumps({"key": self.key, "history": history.to_json()}, ensure_ascii=False)
        write_whole(self.path, text, "an acceptance history")
        return self.path
