"""What every source of a model file shares: hashes checked once, a lock, room on the disk."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import DownloadError, HashMismatchError
from paceline.models.download_progress import Progress

logger = logging.getLogger(__name__)

CHUNK = 1 << 20
"""Bytes read at a time."""


def check_file(path: Path, sha256: str, progress: Progress) -> None:
    """Make sure that a cached file is the pinned one, hashing it only where it changed since it last was.

    Raises:
        HashMismatchError: it is not. The file stays: whoever put it there may want it.
    """
    if _read_stamp(path) == _stamp_of(path, sha256):
        return
    with progress.track(f"checking {path.name}", path.stat().st_size) as tracker, path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            tracker.advance(len(chunk))
    if digest.hexdigest() != sha256:
        raise HashMismatchError(
            given=f"{path} with SHA-256 {digest.hexdigest()}",
            expected=f"the pinned SHA-256 {sha256}",
            remedy="Delete the file or move it away, and pull the model again",
        )
    write_stamp(path, sha256)


def write_stamp(path: Path, sha256: str) -> None:
    """Note beside a file that it was hashed, so that the next start need not read a gigabyte."""
    try:
        _stamp_path(path).write_text(json.dumps(_stamp_of(path, sha256)), encoding="utf-8")
    except OSError as error:
        logger.warning("%s will be hashed again at the next start: %s", path, error)


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".stamp")


def _stamp_of(path: Path, sha256: str) -> dict[str, object]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}


def _read_stamp(path: Path) -> object:
    try:
        return json.loads(_stamp_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def place(candidate: Path, digest: str, path: Path, sha256: str, source: str) -> None:
    """Give a fetched file its final name, whole or not at all.

    Raises:
        HashMismatchError: the digest is not the pinned one; everything in the candidate's folder is removed.
    """
    if digest != sha256:
        shutil.rmtree(candidate.parent)
        raise HashMismatchError(
            given=f"{source} gave {path.name} with SHA-256 {digest}",
            expected=f"the pinned SHA-256 {sha256}",
            remedy="Pull the model again; if the hash stays the same, the source does not carry this file",
        )
    with candidate.open("rb") as file:
        os.fsync(file.fileno())
    candidate.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    write_stamp(path, sha256)


def require_space(folder: Path, num_bytes: int) -> None:
    """Raise DownloadError unless `num_bytes` are free on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise DownloadError(
            given=f"{free / 1e6:.0f} MB free in {folder}",
            expected=f"at least {num_bytes / 1e6:.0f} MB for this download",
            remedy="Free some space, or set PACELINE_CACHE to a folder on a larger disk",
        )


@contextmanager
def exclusive(path: Path, what: str, progress: Progress) -> Iterator[None]:
    """Hold the lock file `path`, waiting for whoever holds it; the system lets go when a process dies."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say(f"another process is fetching {what}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
