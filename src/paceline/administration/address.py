"""The address that a server is to listen on, looked at while a mistake can still be said clearly."""

from __future__ import annotations

import socket

from paceline.errors import ConfigError


def free_port(host: str, port: int) -> int:
    """Return a port that can be listened on now: the given one, or for 0 one that is free.

    Args:
        host: an address of this machine.
        port: of TCP.

    Raises:
        ConfigError: the address is not this machine's, or the port is taken.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
            one.listen()
        except OSError as error:
            raise ConfigError(
                given=f"{host}:{port}: {error.strerror}",
                expected="an address of this machine and a free port",
                remedy="Give others with --host and --port",
            ) from None
        return int(one.getsockname()[1])
