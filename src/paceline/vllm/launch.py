"""Starts vLLM: what its engine cores need is written first, then this process becomes vLLM's server."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from paceline.config.file import load_serve_config
from paceline.config.server import ServeSettings
from paceline.config.settings import environment_with
from paceline.errors import ConfigError
from paceline.vllm.bridge import read_json, replace_json
from paceline.vllm.flags import ENVIRONMENT, Launch
from paceline.vllm.served import VllmService

FORMAT = 1
SERVER_FILE, LOCK_FILE = "server.json", "server.lock"


def prepare(settings: ServeSettings, launch: Launch, flags: Mapping[str, Any]) -> None:
    """Write the files that vLLM's processes read when they start: routes, and where the configuration is.

    Args:
        settings: the configuration.
        launch: what is started.
        flags: what was said beside the configuration file, as `load_serve_config` takes it.

    Raises:
        ConfigError: the folder cannot be written, or another server has it.
    """
    try:
        launch.bridge.mkdir(parents=True, exist_ok=True, mode=0o700)
        with in_use(launch.bridge):
            for path in launch.bridge.glob("engine-*.json"):
                path.unlink()  # of an earlier start, maybe with more engine cores
            value = {"format": FORMAT, "config": str(settings.path), "flags": dict(flags)}
            replace_json(launch.bridge / SERVER_FILE, value)
            asyncio.run(_write_routes(settings, launch.bridge))
    except OSError as error:
        raise ConfigError(
            given=f"{launch.bridge}: {error.strerror}",
            expected="a folder that can be written, for the files between vLLM's processes",
            remedy="Make it writable, or set vllm.bridge to another place",
        ) from None


async def _write_routes(settings: ServeSettings, bridge: Path) -> None:
    service = VllmService(settings, bridge)
    try:
        await service.start()
    finally:
        service.close()


def settings_of(bridge: Path) -> ServeSettings:
    """Return the configuration that `prepare` was given, in the process that serves.

    Raises:
        ConfigError: there is none, or it is wrong by now.
    """
    what = "what `paceline vllm serve` wrote before it started vLLM"
    try:
        value = read_json(bridge / SERVER_FILE, what, FORMAT)
        return load_serve_config(Path(value["config"]), value["flags"])
    except (FileNotFoundError, KeyError, TypeError):
        raise ConfigError(
            given=f"{bridge} without a sound {SERVER_FILE}",
            expected=what,
            remedy="Start vLLM with that command",
        ) from None


@contextmanager
def in_use(bridge: Path) -> Iterator[None]:
    """Have a bridge to oneself while the block runs.

    Raises:
        ConfigError: another server has it.
    """
    with (bridge / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                given=f"{bridge}, by which another server reaches its engine cores",
                expected="a folder for each server",
                remedy="Stop that server, or give this one another vllm.bridge and server.state_path",
            ) from None
        yield


def become_vllm(launch: Launch) -> NoReturn:
    """Replace this process by vLLM's server, so that signals and logs are its own."""
    command = launch.command
    os.execve(command[0], command, environment_with(ENVIRONMENT))
