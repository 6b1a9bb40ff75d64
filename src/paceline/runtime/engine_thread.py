"""The one thread that touches the engine. Others hand it commands, which it runs between steps."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from paceline.clock import Clock
from paceline.engine.engine import Engine
from paceline.records import StreamChunk
from paceline.runtime.watchdog import Watchdog

log = logging.getLogger(__name__)

Command = Callable[[Engine], None]
IDLE_WAIT_S = 0.01
"""How long to wait for a command after a step in which nothing could be done."""


class EngineThread:
    """Steps the engine while there is work.

    Args:
        engine: nobody else may touch it while the thread runs, but for `prepare`.
        deliver: is given what each step produced.
        on_broken: is given the error after which no step can be made; the thread has ended then.
        watchdog: looks at the engine between steps.
        clock: tells when a step began.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[Sequence[StreamChunk]], None],
        on_broken: Callable[[BaseException], None],
        watchdog: Watchdog,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._on_broken = on_broken
        self._watchdog = watchdog
        self._clock = clock
        # Putting into it is safe even from a finaliser that interrupts another put.
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def post(self, command: Command) -> None:
        """Run a command before the next step, after those that were posted before it. Safe in any thread."""
        self._commands.put(command)

    def stop(self, timeout_s: float | None) -> bool:
        """End after the step that runs; returns whether the thread ended in time."""
        self._commands.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            is_idle = True
            while True:
                self._take_commands(is_idle)
                if self._is_stopping:
                    self._engine.observers.tell_end()
                    return
                is_idle = self._step()
        except BaseException as error:
            log.critical("the engine's thread ended", exc_info=True)
            self._on_broken(error)

    def _take_commands(self, is_idle: bool) -> None:
        """Run all commands that wait; with nothing else to do, wait for one."""
        try:
            if not is_idle or self._works_idle():
                command = self._commands.get_nowait()
            else:
                command = self._commands.get(timeout=IDLE_WAIT_S if self._engine.has_work else None)
            while True:
                if command is None:
                    self._is_stopping = True
                    return
                command(self._engine)
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _works_idle(self) -> bool:
        """Do a little that nobody waits for; one that fails does not end the thread."""
        try:
            return self._engine.work_idle()
        except Exception:
            log.exception("idle work failed; serving goes on")
            return False

    def _step(self) -> bool:
        """Make one step; returns whether nothing was done."""
        if not self._engine.has_work:
            return True
        num_steps = self._engine.num_steps
        self._watchdog.begin_step(self._clock())
        try:
            chunks = self._engine.step()
        except Exception as error:
            log.exception("a step failed as a whole; the requests in the engine end with it")
            self._engine.fail_all(error)
            chunks = self._engine.step()
        finally:
            self._watchdog.end_step()
        if chunks:
            self._deliver(chunks)
        self._watchdog.check_sequences(self._engine)
        return not chunks and self._engine.num_steps == num_steps
