"""Flags that a person gives vLLM directly: passed on as they are, but for those that would undo ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from paceline.errors import ConfigError

SHORT = {"sc": "speculative-config", "asc": "api-server-count", "dpm": "data-parallel-multi-port-external-lb"}
"""Short names of vLLM's that mean one of those below."""
_SPECULATIVE = "Set its keys below vllm.speculative"
REFUSED: Mapping[str, str] = {
    "scheduler-cls": "Leave it out: Paceline's scheduler is what reads the routes",
    "additional-config": "Set its keys below vllm.additional_config",
    "speculative-config": _SPECULATIVE,
    "spec-method": _SPECULATIVE,
    "spec-model": _SPECULATIVE,
    "spec-tokens": _SPECULATIVE,
    "model": "Set vllm.model",
    "served-model-name": "Set server.model_name",
    "host": "Set server.host",
    "port": "Set server.port",
    "uds": "Set server.host and server.port, and put a proxy in front",
    "api-key": "Set server.api_keys, which also name routes and limits",
    "api-server-count": "Leave it out: one process has the routes and their changes",
    "shutdown-timeout": "Set server.shutdown_timeout_s",
    "config": "Give the flags that are in that file, or set vllm.flags",
    "grpc": "Leave it out: routes are named over HTTP",
    "grpc-port": "Leave it out: routes are named over HTTP",
    "data-parallel-multi-port-external-lb": "Start one `paceline vllm serve` for each rank, with "
    "--data-parallel-rank and a vllm.bridge of its own",
}
"""What to do instead, by flag."""


def check_extra(arguments: Sequence[str], ours: Sequence[str]) -> None:
    """Refuse flags that contradict what the configuration says.

    Args:
        arguments: as on vLLM's command line.
        ours: names of the flags that are written from the configuration, without dashes.

    Raises:
        ConfigError: there is such a flag, or something that is none.
    """
    for name in flag_names(arguments):
        refused = next((one for one in REFUSED if _means(name, one)), None)
        if refused is not None:
            raise ConfigError(
                given=f"--{name} among the flags of vLLM",
                expected="flags that Paceline does not write itself",
                remedy=REFUSED[refused],
            )
        if any(_means(name, one) for one in ours):
            raise ConfigError(
                given=f"--{name} among the flags of vLLM, and in the configuration",
                expected="one of them",
                remedy=f"Take it out of one; `paceline vllm flags` shows where --{name} comes from",
            )


def flag_names(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the names of flags, in vLLM's spelling with dashes, without `no-` and keys below them."""
    for argument in arguments:
        if not argument.startswith("-") or re.fullmatch(r"-\d.*|-", argument):
            continue
        name = argument.partition("=")[0].lstrip("-").partition(".")[0].replace("_", "-")
        yield SHORT.get(name, name) if not argument.startswith("--") else name.removeprefix("no-")


def has_flag(arguments: Sequence[str], name: str) -> bool:
    """Whether a flag is among them."""
    return name in flag_names(arguments)


def _means(name: str, flag: str) -> bool:
    """Whether a name means a flag: as it is, or cut short, which vLLM's parser takes too."""
    return name == flag or (len(name) >= 3 and name not in _WHOLE and flag.startswith(name))


_WHOLE = frozenset({"middleware", "model-impl"})
"""Flags of vLLM's own, in case they begin as others do."""
