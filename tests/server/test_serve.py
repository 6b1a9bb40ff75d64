"""How the server listens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from paceline.server.serve import listen, new_event_loop, uvicorn_config


def test_the_extra_brings_the_event_loop_and_the_parser() -> None:
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, uvloop.Loop)

    async def nothing(*arguments: object) -> None:
        """Answer nobody."""

    config = uvicorn_config(nothing)
    config.load()
    assert config.http_protocol_class.__module__ == "uvicorn.protocols.http.httptools_impl"
    assert not config.access_log


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"])
def test_small_pieces_are_sent_at_once(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    seen: list[int] = []

    async def main() -> None:
        def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            seen.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listen("127.0.0.1", 0)
        server = await asyncio.start_server(answer, sock=listener)
        async with server:
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            await reader.read()
            writer.close()
            await writer.wait_closed()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert seen == [1]
