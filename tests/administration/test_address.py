"""A server's address is looked at before anything is started."""

from __future__ import annotations

import socket

import pytest

from paceline.administration.address import free_port
from paceline.errors import ConfigError


def test_a_port_that_is_taken_or_an_address_that_is_anothers_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: Address already in use.*--port"):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", port) == port
    assert free_port("127.0.0.1", 0) > 0
    with pytest.raises(ConfigError, match="an address of this machine"):
        free_port("192.0.2.1", 0)
