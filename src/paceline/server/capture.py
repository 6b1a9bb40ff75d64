"""Sampled traffic in a file, for measuring on it later; the only place where text of requests is written.

A line is what `--input` of the commands reads: `messages` or `prompt`, `id` and `route`, and beside them how
the answer was asked for and what it was.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.config.server import CaptureSettings
from paceline.records import GenerationResult, SamplingParams

log = logging.getLogger(__name__)


class Capture:
    """Writes a share of the requests down, with their answers.

    Two files take turns, each of half the bytes that may be used: the one that is written, and `NAME.1` with
    what came before. Both can be read by their owner alone.

    Args:
        settings: which requests, and where to.
        chance: draws from [0, 1).
    """

    def __init__(self, settings: CaptureSettings, chance: random.Random | None = None) -> None:
        self._settings = settings
        self._chance = chance or random.Random()
        self._has_failed = False

    def wants(self, route: str) -> bool:
        """Draw whether a request is to be written down."""
        routes = self._settings.routes
        return (routes is None or route in routes) and self._chance.random() < self._settings.share

    def write(
        self,
        source: Mapping[str, Any],
        route: str,
        sampling: SamplingParams,
        results: Sequence[GenerationResult],
    ) -> None:
        """Write one prompt with its answers; a file that cannot be written is logged, once."""
        entry = {
            "id": results[0].id,
            "route": route,
            **source,
            "sampling": sampling.model_dump(mode="json", exclude_defaults=True),
            "time": time.time(),
            "answers": [
                {
                    "text": result.text,
                    "finish_reason": result.finish_reason.value,
                    "seed": result.seed,
                    "num_tokens": result.usage.completion_tokens,
                }
                for result in sorted(results, key=lambda one: one.index)
            ],
        }
        # Escaped, so that half a surrogate pair, which JSON can spell and UTF-8 cannot, breaks nothing.
        line = (json.dumps(entry) + "\n").encode()
        try:
            self._append(line)
        except OSError as error:
            if not self._has_failed:
                log.error("captured traffic cannot be written to %s: %s", self._settings.path, error.strerror)
            self._has_failed = True

    def _append(self, line: bytes) -> None:
        path: Path = self._settings.path
        most = self._settings.max_bytes // 2
        if len(line) > most:
            return
        if path.exists() and path.stat().st_size + len(line) > most:
            path.replace(path.with_name(f"{path.name}.1"))
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.fchmod(handle, 0o600)  # also where it was there before
            os.write(handle, line)
        finally:
            os.close(handle)
