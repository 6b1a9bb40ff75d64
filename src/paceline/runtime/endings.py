"""The errors with which a runtime ends requests that it cannot answer, or does not take."""

from __future__ import annotations

from paceline.errors import ShutDownError, StalledError, StepError
from paceline.runtime.states import RuntimeState
from paceline.step_records import Stall


def not_running(state: RuntimeState) -> ShutDownError:
    """Return the error of a request that came before the start or after the end."""
    return ShutDownError(
        given=f"a request to a runtime that is {state.value}",
        expected="a running one",
        remedy="Send it to another instance, or wait for this one to come back",
    )


def late() -> ShutDownError:
    """Return the error of a request that a shutdown did not wait for any longer."""
    return ShutDownError(
        given="a request that was still running at the deadline of a shutdown",
        expected="an answer that ends before it",
        remedy="Send it to another instance, or allow a longer deadline",
    )


def stalled(stall: Stall) -> StalledError:
    """Return the error of a request that made no progress."""
    return StalledError(
        given=f"a request for which nothing was computed for {stall.since_s:.0f} s",
        expected="progress in every step or two",
        remedy="Send it again; if it stalls again, the log has the reason",
    )


def broken(cause: BaseException) -> StepError:
    """Return the error of all requests of an engine that makes no step any more."""
    error = StepError(
        given=f"an engine that cannot go on: {type(cause).__name__}: {cause}",
        expected="steps",
        remedy="Restart it; the log has the cause",
    )
    error.__cause__ = cause
    return error
