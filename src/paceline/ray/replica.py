"""The deployment that holds engines. Ray carries it by its name, so that only replicas load PyTorch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ray import serve

from paceline.config.server import ServeSettings
from paceline.errors import PacelineError, ServingError
from paceline.ray.asgi_call import messages
from paceline.ray.link import HubLink
from paceline.ray.ray_hub import RayHub
from paceline.ray.settings import of_replica

if TYPE_CHECKING:
    from paceline.ray.engine_server import EngineServer

HEADER = b"x-paceline-replica"
PROXY_HEADER = b"x-request-id"
"""Ray Serve's proxy gives every response an id by this name; two of them would be none."""


class Replica:
    """A deployment of Ray Serve.

    Args:
        settings: of the whole, with the threads and the KV memory of one replica.
        hub: name of the actor that keeps the routes.
        num_replicas: how many there are.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, settings: ServeSettings, hub: str, num_replicas: int
    ) -> None:
        from paceline.ray.engine_server import EngineServer  # with PyTorch

        self._link = HubLink(RayHub(hub), serve.get_replica_context().replica_tag)
        number = await self._link.join()
        # From now on, since a replica that is silent while it loads would count as gone.
        self._linking = asyncio.create_task(self._link.run())
        try:
            self._server: EngineServer = await EngineServer.load(
                of_replica(settings, number, num_replicas), self._link
            )
        except BaseException:
            self._linking.cancel()
            raise

    async def answer(self, scope: dict[str, Any], body: bytes) -> AsyncGenerator[list[Any], None]:
        """Yield the ASGI messages of one response, as many as there are at a time.

        Args:
            scope: what of it `carried` keeps.
            body: of the request.
        """
        async for batch in messages(self._server.app, scope, body):
            for message in batch:
                if message["type"] == "http.response.start":
                    message["headers"] = self._signed(message["headers"])
            yield batch

    def _signed(self, headers: Any) -> list[tuple[bytes, bytes]]:
        kept = [(name, value) for name, value in headers if name.lower() != PROXY_HEADER]
        return [*kept, (HEADER, str(self._link.number).encode())]

    def check_health(self) -> None:
        """Let Ray Serve replace this replica where its engine has ended; Ray Serve calls it.

        Raises:
            ServingError: it has.
        """
        if not self._server.is_well:
            raise ServingError(
                given="a replica whose engine has ended",
                expected="one that runs",
                remedy="Wait for the one that takes its place",
            )

    async def __del__(self) -> None:
        """End, once no request is left or the time for them is over; Ray Serve calls it."""
        with suppress(PacelineError):
            await self._link.leave()
        self._linking.cancel()
        await self._server.close()
