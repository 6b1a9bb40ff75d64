"""Who is told what steps did. Observers change the next step, never this one, and cannot stop it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from paceline.records import GenerationResult
from paceline.step_records import StepRecord

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Metrics, a policy, a test. Called on the engine's thread, once the step's chunks exist."""

    def on_step(self, record: StepRecord) -> None:
        """Take note of one step in which something was computed."""

    def on_finish(self, result: GenerationResult) -> None:
        """Take note of one answer, however it ended."""


@runtime_checkable
class HearsTheEnd(Protocol):
    """An observer that has something to do when the engine's work is over."""

    def on_end(self) -> None:
        """Do it."""


class Observers:
    """All observers of one engine. One that raises is logged, once, and goes on being called."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._failed: set[int] = set()

    def __iter__(self) -> Iterator[Observer]:
        """The observers, in the order in which they came."""
        return iter(self._observers)

    def __bool__(self) -> bool:
        """Whether there are any, so that nobody makes records for nobody."""
        return bool(self._observers)

    def add(self, observer: Observer) -> None:
        """Tell this one too, from now on."""
        self._observers.append(observer)

    def remove(self, observer: Observer) -> None:
        """Tell this one no more; unknown ones are ignored."""
        if observer in self._observers:
            self._observers.remove(observer)

    def tell_end(self) -> None:
        """Tell those who want to hear it that no step comes any more."""
        self.tell(lambda observer: observer.on_end() if isinstance(observer, HearsTheEnd) else None)

    def tell_result(self, result: GenerationResult) -> None:
        """Tell all of one answer that ended."""
        self.tell(lambda observer: observer.on_finish(result))

    def tell(self, message: Callable[[Observer], None]) -> None:
        """Call each observer; serving goes on whatever it raises."""
        for observer in tuple(self._observers):
            try:
                message(observer)
            except Exception:
                if id(observer) not in self._failed:
                    log.exception("an observer failed; serving goes on, and it is not logged again")
                self._failed.add(id(observer))
