"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from paceline.errors import ConfigError


def write_whole(path: Path, text: str, what: str) -> None:
    """Replace a file's text at once, so that who reads sees the old or the new, and a crash leaves one of
    them.

    Args:
        path: the file; its folder is made.
        text: all of it.
        what: it is, for the error.

    Raises:
        ConfigError: the folder cannot be written.
    """
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        part = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        if part is not None:
            part.unlink(missing_ok=True)
        raise ConfigError(
            given=f"{what} to be saved in {path.parent} ({error})",
            expected="a folder that can be written",
            remedy="Set PACELINE_CACHE to one",
        ) from None
