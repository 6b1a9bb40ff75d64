"""The environment variables that the package listens to, read in one place and frozen."""

from __future__ import annotations

import difflib
import functools
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from paceline.errors import ConfigError

logger = logging.getLogger(__name__)

PREFIX = "PACELINE_"
DEFAULT_URL = "http://127.0.0.1:8000"

VARIABLES = {
    "PACELINE_CACHE": "folder for downloaded models; ~/.cache/paceline where it is not set",
    "PACELINE_ISA": "instruction set of native kernels, such as avx2; the best there is where it is not set",
    "PACELINE_URL": "address of a server for `paceline routes`; http://127.0.0.1:8000 where it is not set",
    "PACELINE_ADMIN_TOKEN": "admin token of that server",
    "HF_ENDPOINT": "address of a Hugging Face hub or mirror; the hub library's own where it is not set",
    "HF_TOKEN": "access token for that hub",
    "HF_HUB_OFFLINE": "1 keeps the package from asking the hub",
}
"""Every variable that is read, with its meaning; the documents and the tests go by this table."""

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says, checked."""

    cache: Path
    """Absolute path of the cache folder; it need not exist."""
    isa: str | None = None
    """Instruction set that native kernels are to use; none takes the best."""
    url: str = DEFAULT_URL
    """Address of a server that commands ask."""
    admin_token: str | None = field(default=None, repr=False)
    """Admin token of that server."""
    hf_endpoint: str | None = None
    """Base address of the hub, without a slash at its end; none leaves it to `huggingface_hub`."""
    hf_token: str | None = field(default=None, repr=False)
    """None leaves it to `huggingface_hub`, which may have one stored."""
    hf_offline: bool = False


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of `environ`, by default of this process.

    An unknown PACELINE_ variable is a warning, not an error: a newer release may know it.

    Raises:
        ConfigError: a variable is set to something that it cannot mean.
    """
    source = os.environ if environ is None else environ
    for name in source:
        # With two underscores it is a key of the configuration, which `config.file` reads.
        if name.startswith(PREFIX) and not name.startswith(PREFIX + "_") and name not in VARIABLES:
            _warn_of_unknown(name)
    return Settings(
        cache=_read_cache(source.get("PACELINE_CACHE")),
        isa=(source.get("PACELINE_ISA") or "").strip() or None,
        url=_read_address("PACELINE_URL", source.get("PACELINE_URL")) or DEFAULT_URL,
        admin_token=(source.get("PACELINE_ADMIN_TOKEN") or "").strip() or None,
        hf_endpoint=_read_address("HF_ENDPOINT", source.get("HF_ENDPOINT")),
        hf_token=(source.get("HF_TOKEN") or "").strip() or None,
        hf_offline=_read_flag("HF_HUB_OFFLINE", source.get("HF_HUB_OFFLINE", "")),
    )


def environment_with(changes: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with some variables set, for a process that it starts."""
    return {**os.environ, **changes}


@functools.cache
def _warn_of_unknown(name: str) -> None:
    ours = [known for known in VARIABLES if known.startswith(PREFIX)]
    nearest = difflib.get_close_matches(name, ours, n=1, cutoff=0.0)[0]
    logger.warning("environment variable %s is unknown and has no effect; the nearest is %s", name, nearest)


def _read_cache(value: str | None) -> Path:
    if not value:
        return Path.home() / ".cache" / "paceline"
    path = Path(value).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise ConfigError(
            given=f"PACELINE_CACHE={value}, which is not a folder",
            expected="a folder, or a path where one can be made",
            remedy="Set PACELINE_CACHE to a folder, or unset it to use ~/.cache/paceline",
        )
    return path


def _read_address(name: str, value: str | None) -> str | None:
    if not value:
        return None
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            given=f"{name}={value}",
            expected="an address that begins with http:// or https://",
            remedy=f"Correct {name}, or unset it to use the default",
        )
    return value.rstrip("/")


def _read_flag(name: str, value: str) -> bool:
    word = value.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ConfigError(f"{name}={value}", expected="1 or 0", remedy=f"Set {name} to 1 or 0, or unset it")
    return word in _TRUE
