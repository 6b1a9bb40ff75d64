"""How the server listens."""

from __future__ import annotations

import asyncio
import socket

from paceline.server.serve import _listen


def test_small_pieces_are_sent_at_once() -> None:
    seen: list[int] = []

    async def main() -> None:
        def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            seen.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = _listen("127.0.0.1", 0)
        server = await asyncio.start_server(answer, sock=listener)
        async with server:
            reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            await reader.read()
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())
    assert seen == [1]
