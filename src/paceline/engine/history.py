"""Keeps what the policy knows of acceptance over restarts: in a file, now and then and at the end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from paceline.clock import Clock, monotonic
from paceline.config.engine import EngineSettings
from paceline.config.paths import cache_dir
from paceline.engine.calibration import describe
from paceline.errors import ConfigError
from paceline.models.load import LoadedModel
from paceline.policy.controller import SpeculationPolicy
from paceline.policy.cost_store import cost_key
from paceline.policy.history import History
from paceline.policy.history_store import HistoryStore
from paceline.records import GenerationResult
from paceline.step_records import StepRecord

log = logging.getLogger(__name__)

EVERY_S = 300.0
OF_THE_MACHINE = ("machine", "threads", "device", "kernels")
"""What step costs depend on besides, and acceptance does not."""


def history_store(
    target: LoadedModel,
    drafts: Mapping[str, LoadedModel],
    settings: EngineSettings,
    replica: int | None = None,
) -> HistoryStore:
    """Return where the history of these models is kept: in the cache folder, by the content of their files
    and how their weights are held; for each of several replicas by itself."""
    parts = describe(target, drafts, settings)
    key = cost_key({name: value for name, value in parts.items() if name not in OF_THE_MACHINE})
    return HistoryStore(cache_dir() / "acceptance", key, replica)


class KeptHistory:
    """Lets a policy begin with its history, and keeps that up to date; an observer of the engine.

    Args:
        policy: to be kept; it begins with what there is.
        store: the file.
        clock: of the engine.
        every_s: seconds from one time that it is written to the next.

    What is known is read off between two steps, and written by a thread of its own. A file that cannot be
    written is logged once, and serving goes on.
    """

    def __init__(
        self,
        policy: SpeculationPolicy,
        store: HistoryStore,
        *,
        clock: Clock = monotonic,
        every_s: float = EVERY_S,
    ) -> None:
        self._policy = policy
        self._store = store
        self._clock = clock
        self._every_s = every_s
        self._kept_at = clock()
        self._writing: threading.Thread | None = None
        self._has_failed = False
        self._has_news = False
        history = store.load()
        if history is not None:
            names = policy.restore(history)
            log.info("acceptance of %d routes is taken up from %s", len(names), store.path)

    def on_step(self, record: StepRecord) -> None:
        """Write the history down if it is time to, without waiting for it."""
        self._has_news = True
        now = self._clock()
        if now - self._kept_at < self._every_s or (self._writing is not None and self._writing.is_alive()):
            return
        self._kept_at = now
        history = self._policy.history()
        self._writing = threading.Thread(
            target=self._write, args=(history,), name="paceline-history", daemon=True
        )
        self._writing.start()

    def on_finish(self, result: GenerationResult) -> None:
        """Nothing is to be done: the policy hears of it itself."""

    def on_end(self) -> None:
        """Write the history down, if anything was served since it was read."""
        if self._writing is not None:
            self._writing.join()
        if self._has_news:
            self._has_news = False
            self._write(self._policy.history())

    def _write(self, history: History) -> None:
        try:
            self._store.save(history)
        except ConfigError as error:
            if not self._has_failed:
                log.warning("%s Serving goes on, and this is not said again", error)
            self._has_failed = True
