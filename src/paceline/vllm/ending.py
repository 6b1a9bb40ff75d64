"""The end of vLLM's server: what its engine will not answer is refused or ended, so that the process leaves.

vLLM lets its engine finish and stop, and goes on taking requests, which the engine gives up without a token.
Then it waits without a limit for each answer that is under way. One whose end was on its way when the engine
was taken down waits for ever, and so does one whose client does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

LOOK_EVERY_S = 0.2
SENT_WITHIN_S = 1.0
"""By then vLLM has passed on what its engine said last."""
GIVEN_UP_AFTER_S = 5
"""Answers that could not be sent by then, since nobody reads them, are cut off. Whole seconds."""


class Ends(Protocol):
    """Whoever takes requests."""

    def refuse(self) -> None:
        """Take no more, in any thread."""

    def end(self) -> None:
        """End the answers under way."""


@contextlib.asynccontextmanager
async def ended_with(server: Any, engine_client: Any, front: Ends) -> AsyncIterator[None]:
    """While the block runs, let a front end when vLLM does.

    Args:
        server: uvicorn's, as vLLM runs it: it is told after vLLM's engine has stopped.
        engine_client: vLLM's, whose `shutdown` stops the engine.
        front: takes the requests.
    """
    stop = engine_client.shutdown

    def refuse_and_stop(*args: Any, **kwargs: Any) -> Any:
        front.refuse()
        return stop(*args, **kwargs)

    engine_client.shutdown = refuse_and_stop
    if server.config.timeout_graceful_shutdown is None:
        server.config.timeout_graceful_shutdown = GIVEN_UP_AFTER_S
    watching = asyncio.create_task(_watch(server, front))
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _watch(server: Any, front: Ends) -> None:
    while not server.should_exit:
        await asyncio.sleep(LOOK_EVERY_S)
    await asyncio.sleep(SENT_WITHIN_S)
    front.end()
