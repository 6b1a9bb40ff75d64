"""Requests from an event loop to the engine's thread, and chunks back."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from paceline.clock import Clock, monotonic
from paceline.engine.engine import Engine
from paceline.engine.observer import Observer
from paceline.engine.sequence import Sequence as EngineSequence
from paceline.errors import ShutDownError, StepError
from paceline.records import Request
from paceline.runtime import endings
from paceline.runtime.engine_thread import EngineThread
from paceline.runtime.places import Places
from paceline.runtime.states import RuntimeState, ShutdownReport
from paceline.runtime.stream import AnswerStream
from paceline.runtime.switchboard import Switchboard
from paceline.runtime.watchdog import StallListener, Watchdog
from paceline.step_records import Stall

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_QUEUED = 64
STALL_AFTER_S = 60.0
GRACE_S = 5.0
"""How long shutdown waits for the step that runs, once its deadline has passed."""


class Runtime:
    """One engine, its thread, and any number of streams.

    Args:
        engine: an engine that nobody else touches from here on.
        max_queued: sequences that may wait beyond those that run; more are refused with a `BusyError`.
        stall_after_s: seconds without progress after which the watchdog speaks.
        ends_stalled: whether a stalled request is ended with a `StalledError`, or only reported.
        clock: the engine's clock.

    Use it with `async with`, or call `start` and `shutdown`. What does not say that it is safe in any thread
    belongs to the event loop that started it.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_queued: int = MAX_QUEUED,
        stall_after_s: float = STALL_AFTER_S,
        ends_stalled: bool = False,
        clock: Clock = monotonic,
    ) -> None:
        self._engine = engine
        self._places = Places(engine.max_num_seqs + max_queued, clock)
        self._ends_stalled = ends_stalled
        self._stall_listeners: list[StallListener] = []
        self._watchdog = Watchdog(stall_after_s, clock, self._on_stall)
        self._thread = EngineThread(
            engine,
            lambda chunks: self._board.deliver(engine, chunks),
            self._on_broken,
            self._watchdog,
            clock,
        )
        self._board = Switchboard(self._places, self._thread.post)
        self._calls: set[asyncio.Future[object]] = set()
        self._at_exit = functools.partial(_stop_at_exit, weakref.ref(self._thread))
        self.state = RuntimeState.NEW

    def start(self) -> None:
        """Start the engine's thread, and belong to the running event loop from here on."""
        if self.state is not RuntimeState.NEW:
            raise RuntimeError(f"a runtime that is {self.state.value}; a new one was expected")
        self._board.start()
        self._thread.start()
        self._watchdog.start()
        # A thread that is left inside native code when the interpreter goes away would crash it.
        atexit.register(self._at_exit)
        self.state = RuntimeState.RUNNING

    async def __aenter__(self) -> Self:
        """Start."""
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down at once: requests that still run end with a `ShutDownError`."""
        await self.shutdown(0.0)

    @property
    def num_open(self) -> int:
        """Requests that were taken and have not ended."""
        return len(self._board.request_ids)

    @property
    def num_open_sequences(self) -> int:
        """Their choices that have not ended."""
        return self._places.num_taken

    async def submit(self, request: Request) -> AnswerStream:
        """Check a request, queue it and return its stream.

        Raises:
            RequestError: it can never run.
            BusyError: the queue is full.
            ShutDownError: the runtime drains or has stopped.
        """
        self._check_running()
        ticket, mailbox = self._board.open(request)
        try:
            sequences = await self._prepare(request)
            self._check_running()
        except BaseException:
            self._board.forget(ticket)
            raise
        self._thread.post(lambda engine: self._board.add(engine, ticket, sequences))
        return AnswerStream(mailbox, lambda: self._board.abandon(ticket, request.id))

    async def _prepare(self, request: Request) -> Sequence[EngineSequence]:
        if request.sampling.structured_output is None:
            return self._engine.prepare(request)
        # To compile a grammar may take a second, which neither the loop nor the engine should lose.
        return await asyncio.to_thread(self._engine.prepare, request)

    def abort(self, request_id: str) -> None:
        """End a request; its stream gets last chunks with the reason "abort". Safe in any thread."""

        def command(engine: Engine) -> None:
            engine.abort(request_id)

        self._thread.post(command)

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Run a function on the engine's thread between two steps and return what it returns.

        This is how anything but a request reaches the engine: settings, figures, caches to be cleared.

        Raises:
            ShutDownError: the runtime has stopped, or stops before the function's turn.
        """
        if self.state in (RuntimeState.NEW, RuntimeState.STOPPED):
            raise endings.not_running(self.state)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._calls.add(future)

        def command(engine: Engine) -> None:
            try:
                result = function(engine)
            except Exception as error:
                self._board.on_loop(_settle, future, None, error)
            else:
                self._board.on_loop(_settle, future, result, None)

        self._thread.post(command)
        try:
            return await future  # type: ignore[return-value]
        finally:
            self._calls.discard(future)

    async def add_observer(self, observer: Observer) -> None:
        """Tell an observer of each step from the next on; it is called on the engine's thread."""
        await self.call(lambda engine: engine.observers.add(observer))

    async def remove_observer(self, observer: Observer) -> None:
        """Tell it no more."""
        await self.call(lambda engine: engine.observers.remove(observer))

    def add_stall_listener(self, listener: StallListener) -> None:
        """Tell a listener of each stall; it is called on the engine's or the watchdog's thread."""
        self._stall_listeners.append(listener)

    async def drain(self) -> None:
        """Take no more requests, and wait until those that were taken have ended."""
        self._check_running()
        self.state = RuntimeState.DRAINING
        await self._board.is_empty.wait()
        await self.call(_wait_for_turn)  # blocks of streams that were closed are free after this

    def resume(self) -> None:
        """Take requests again after a drain."""
        if self.state is not RuntimeState.DRAINING:
            raise RuntimeError(f"a runtime that is {self.state.value}; a draining one was expected")
        self.state = RuntimeState.RUNNING

    async def shutdown(self, deadline_s: float | None = None) -> ShutdownReport:
        """Take no more requests, let those there are finish, and stop the engine's thread.

        Args:
            deadline_s: seconds until requests that still run are ended with a `ShutDownError`; 0 ends them
                now, none never does.
        """
        if self.state in (RuntimeState.NEW, RuntimeState.STOPPED):
            self.state = RuntimeState.STOPPED
            return ShutdownReport(0, 0, is_clean=True)
        self.state = RuntimeState.DRAINING
        num_open = self.num_open
        late = [] if await self._becomes_empty(deadline_s) else self._board.request_ids
        if late:
            self._thread.post(lambda engine: _fail_late(engine, late))
            await self._becomes_empty(GRACE_S)
        self._stop(endings.late())
        is_clean = await asyncio.to_thread(self._thread.stop, GRACE_S)
        if is_clean:
            atexit.unregister(self._at_exit)
        else:
            log.error("the engine's thread is inside a step that does not end; it is left behind")
        return ShutdownReport(num_open - len(late), len(late), is_clean)

    async def _becomes_empty(self, timeout_s: float | None) -> bool:
        if timeout_s is not None and timeout_s <= 0:
            return self._board.is_empty.is_set()
        try:
            await asyncio.wait_for(self._board.is_empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _stop(self, error: ShutDownError | StepError) -> None:
        """Let everybody who still waits know that nothing more will come."""
        self.state = RuntimeState.STOPPED
        self._watchdog.stop()
        self._board.fail_all(error)
        for future in self._calls:
            _settle(future, None, error)

    def _check_running(self) -> None:
        if self.state is not RuntimeState.RUNNING:
            raise endings.not_running(self.state)

    def _on_stall(self, stall: Stall) -> None:
        """Pass a stall on; on the engine's thread, or on the watchdog's where a step is stuck."""
        for listener in tuple(self._stall_listeners):
            listener(stall)
        if not self._ends_stalled:
            return
        error = endings.stalled(stall)
        if stall.is_step_stuck:
            self._board.on_loop(self._board.fail_all, error)
        else:
            self._engine.fail(stall.request_id, error)

    def _on_broken(self, cause: BaseException) -> None:
        """Tell everybody that no step can be made any more; on the engine's thread, as its last act."""
        error = endings.broken(cause)
        self._board.on_loop(self._stop, error)


def _wait_for_turn(engine: Engine) -> None:
    """Do nothing between two steps."""


def _settle(future: asyncio.Future[object], result: object, error: Exception | None) -> None:
    """Give a future its result or its error, unless nobody waits for it any more."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _fail_late(engine: Engine, request_ids: Sequence[str]) -> None:
    for request_id in request_ids:
        engine.fail(request_id, endings.late())


def _stop_at_exit(thread: weakref.ref[EngineThread]) -> None:
    running = thread()
    if running is not None:
        running.stop(GRACE_S)
